"""torch: eager and compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from contenders.base import Absent, Contender, Factory, python_calls
from problem import Problem

Formula = Callable[[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None], Any]


def eager(p: Problem) -> Formula:
    """The cell in torch's own functions."""
    shape, eps, kind = (p.shape.n,), p.eps, p.cell.kind

    def rms(x: Tensor, w: Tensor, b: Tensor | None, r: Tensor | None, z: Tensor | None) -> Any:
        return F.rms_norm(x, shape, w, eps)

    def layer(x: Tensor, w: Tensor, b: Tensor | None, r: Tensor | None, z: Tensor | None) -> Any:
        return F.layer_norm(x, shape, w, b, eps)

    def add_rms(x: Tensor, w: Tensor, b: Tensor | None, r: Tensor | None, z: Tensor | None) -> Any:
        assert r is not None
        s = x + r
        return F.rms_norm(s, shape, w, eps), s

    def gated(x: Tensor, w: Tensor, b: Tensor | None, r: Tensor | None, z: Tensor | None) -> Any:
        assert z is not None
        return F.rms_norm(x * F.silu(z), shape, w, eps)

    def gated_after(x: Tensor, w: Tensor, b: Tensor | None, r: Tensor | None, z: Tensor | None) -> Any:
        assert z is not None
        return F.rms_norm(x, shape, w, eps) * F.silu(z)

    def int8(x: Tensor, w: Tensor, b: Tensor | None, r: Tensor | None, z: Tensor | None) -> Any:
        y = F.rms_norm(x, shape, w, eps).float()
        scale = y.abs().amax(-1, keepdim=True) / 127
        return (y / scale).round().to(torch.int8), scale

    formulas: dict[str, Formula] = {
        "rms": rms,
        "layer": layer,
        "add_rms": add_rms,
        "gated": gated,
        "gated_after": gated_after,
        "int8": int8,
    }
    return formulas[kind]


def llama(p: Problem) -> Formula:
    """The forward of Transformers' LlamaRMSNorm."""
    eps = p.eps

    def forward(x: Tensor, w: Tensor, b: Tensor | None, r: Tensor | None, z: Tensor | None) -> Any:
        h = x.to(torch.float32)
        variance = h.pow(2).mean(-1, keepdim=True)
        h = h * torch.rsqrt(variance + eps)
        return w * h.to(x.dtype)

    if p.cell.kind != "rms":
        raise Absent("RMSNorm only")
    return forward


def torch_contender(p: Problem, function: Formula) -> Contender:
    """``function`` of torch tensors, with its gradients by autograd if the cell has them."""
    operands = (p.x, p.weight, p.bias, p.residual, p.gate)
    if not p.backward:

        def forward() -> Any:
            with_out = function(*operands)
            return with_out

        def results() -> Mapping[str, Any]:
            return _named(p, forward())

        return Contender(python_calls(forward), results, allocates=True)
    leaves = [None if t is None else t.detach().requires_grad_() for t in operands]
    x, w, b, r, z = leaves
    assert x is not None and w is not None
    wanted = [t for t in leaves if t is not None]
    slopes = [g for g in (p.dy, p.dsum) if g is not None]

    def both() -> Any:
        y = function(x, w, b, r, z)
        outputs = list(y) if isinstance(y, tuple) else [y]
        return y, torch.autograd.grad(outputs, wanted, slopes)

    def all_results() -> Mapping[str, Any]:
        y, grads = both()
        names = [
            n for n, t in zip(("dx", "dweight", "dbias", "dresidual", "dgate"), leaves, strict=True) if t is not None
        ]
        return {**_named(p, y), **dict(zip(names, grads, strict=True))}

    return Contender(python_calls(both), all_results, allocates=True)


def _named(p: Problem, y: Any) -> Mapping[str, Any]:
    if p.cell.kind == "int8":
        return {"q": y[0], "scale": y[1]}
    return {"y": y[0], "sum": y[1]} if p.cell.kind == "add_rms" else {"y": y}


def torch_eager(p: Problem, threads: int, formula: Callable[[Problem], Formula] = eager) -> Contender:
    return torch_contender(p, formula(p))


def torch_compiled(p: Problem, threads: int, formula: Callable[[Problem], Formula] = eager) -> Contender:
    """torch.compile for these very shapes; it compiles here, in the first call."""
    contender = torch_contender(p, torch.compile(formula(p), dynamic=False, fullgraph=True))
    contender.call(1)
    return contender


FACTORIES: dict[str, Factory] = {
    "torch": torch_eager,
    "torch Llama": partial(torch_eager, formula=llama),
    "torch compile": torch_compiled,
    "torch Llama compile": partial(torch_compiled, formula=llama),
}
