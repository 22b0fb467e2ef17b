"""For the tests of truenorm.torch: the formula in torch's own operations and double precision, measures of error."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
BITS = {torch.float64: 53, torch.float32: 24, torch.bfloat16: 8, torch.float16: 11}
LEAST = {torch.float64: -1074, torch.float32: -149, torch.bfloat16: -133, torch.float16: -24}
INTEGERS = {8: torch.int64, 4: torch.int32, 2: torch.int16}


def draw(
    *shape: int, dtype: torch.dtype = torch.float32, seed: int = 0, scale: float = 1.0, grad: bool = False
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    t = (scale * torch.randn(*shape, generator=generator, dtype=torch.float64)).to(dtype)
    return t.requires_grad_(grad)


def ulp(value: Tensor, dtype: torch.dtype) -> Tensor:
    """The spacing of ``dtype`` at |value|, in double."""
    exponent = torch.frexp(value.double().abs())[1] - BITS[dtype]
    return torch.ldexp(torch.ones_like(value, dtype=torch.float64), exponent.clamp(min=LEAST[dtype]))


def error_ulp(got: Tensor, exact: Tensor) -> float:
    """The largest |got - exact| in ulp of the exact value; exact is double."""
    if got.numel() == 0:
        return 0.0
    return float(((got.double() - exact).abs() / ulp(exact, got.dtype)).detach().max())


def same_bits(a: Tensor | None, b: Tensor | None) -> bool:
    """Equal dtype, shape and bits, -0 and NaN included."""
    if a is None or b is None:
        return a is b
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    kind = INTEGERS[a.element_size()]
    return torch.equal(a.detach().contiguous().view(kind), b.detach().contiguous().view(kind))


def activation(gate: Tensor, act: str) -> Tensor:
    return torch.nn.functional.silu(gate) if act == "silu" else torch.sigmoid(gate)


def _double(t: Tensor | None) -> Tensor | None:
    return None if t is None else t.double()


def reference(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    kind: str = "rms",
    eps: float = 1e-6,
    eps_mode: str = "inside",
    weight_offset: float = 0.0,
    divisor: float | None = None,
    group: int | None = None,
    partial: int | None = None,
    positions: int | None = None,
    residual: Tensor | None = None,
    gate: Tensor | None = None,
    gate_order: str = "before",
    act: str = "silu",
    mod_scale: Tensor | None = None,
    mod_shift: Tensor | None = None,
    **_: Any,
) -> Tensor:
    """y in double precision, no rounding in between; differentiable. Options as truenorm.torch.norm."""
    s, w, b, gate, residual = x.double(), _double(weight), _double(bias), _double(gate), _double(residual)
    if residual is not None:
        s = s + residual
    if gate is not None and gate_order == "before":
        s = s * activation(gate, act)
    n = x.shape[-1]
    size = group or n
    rows = s.unflatten(-1, (n // size, size))
    counted = partial or size
    mean = rows[..., :counted].mean(-1, keepdim=True) if kind == "layer" else 0.0
    d = rows - mean
    squares = (d[..., :counted] ** 2).sum(-1, keepdim=True)
    v = squares / (divisor or (1.0 if kind == "l2" else counted))
    if eps_mode == "inside":
        h = d / (v + eps).sqrt()
    elif eps_mode == "outside":
        h = d / (v.sqrt() + eps)
    else:
        h = d / v.sqrt().clamp(min=eps)
    y = h.flatten(-2)
    if w is not None:
        w = w + weight_offset
        y = y * (w if not positions else w.repeat_interleave(positions, -1))
    if b is not None:
        y = y + (b if not positions else b.repeat_interleave(positions, -1))
    if mod_scale is not None:
        y = y * (1 + mod_scale.double())
    if mod_shift is not None:
        y = y + mod_shift.double()
    return y * activation(gate, act) if gate is not None and gate_order == "after" else y


# name -> (operands besides x and weight, options); x is [5, 3, 24]
OPTIONS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "plain": ((), {}),
    "bias": (("bias",), {}),
    "layer": (("bias",), {"kind": "layer", "eps": 1e-5}),
    "l2": ((), {"kind": "l2"}),
    "outside": ((), {"eps_mode": "outside"}),
    "clamp": ((), {"eps_mode": "clamp", "eps": 1.5}),
    "offset": ((), {"weight_offset": 1.0}),
    "divisor": ((), {"divisor": 7.5}),
    "group": ((), {"group": 8}),
    "layer group": (("bias",), {"kind": "layer", "group": 6}),
    "partial": ((), {"partial": 10}),
    "group partial": ((), {"group": 12, "partial": 5}),
    "positions": (("bias",), {"kind": "layer", "positions": 4}),
    "residual exact": (("residual",), {"sum": "exact"}),
    "layer residual": (("residual", "bias"), {"kind": "layer", "sum": "exact"}),
    "gate before": (("gate",), {}),
    "gate after": (("gate",), {"gate_order": "after", "act": "sigmoid"}),
    "gate group": (("gate",), {"group": 8, "gate_order": "after"}),
    "gate residual": (("gate", "residual"), {"sum": "exact"}),
    "modulated": (("bias", "mod_scale", "mod_shift"), {"kind": "layer"}),
    "all": (
        ("bias", "gate", "residual", "mod_scale", "mod_shift"),
        {"kind": "layer", "gate_order": "after", "weight_offset": 1.0, "sum": "exact"},
    ),
}
SMOOTH = [name for name, (extra, o) in OPTIONS.items() if not ({"gate", "mod_scale"} & set(extra) or "partial" in o)]
SHAPE = (5, 3, 24)


def operands(
    name: str, dtype: torch.dtype = torch.float32, grad: bool = False
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """(x, weight, everything else by keyword) of one entry of OPTIONS."""
    extra, options = OPTIONS[name]
    width = SHAPE[-1] // options.get("positions", 1)
    keywords: dict[str, Any] = dict(options)
    for seed, key in enumerate(extra, 10):
        shape: tuple[int, ...] = SHAPE if key in ("residual", "gate") else (width,)
        if key.startswith("mod"):
            shape = (SHAPE[0], 1, SHAPE[-1])
        keywords[key] = draw(*shape, dtype=dtype, seed=seed, grad=grad)
    return draw(*SHAPE, dtype=dtype, seed=1, grad=grad), draw(width, dtype=dtype, seed=2, grad=grad), keywords
