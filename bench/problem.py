"""The operands of a cell, and its results in float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grid import Cell, Shape

F64 = NDArray[np.float64]
TORCH_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
# Results are compared on this many rows at most; sums over rows are compared whole.
CHECKED_ROWS = 128
SUMS = ("dweight", "dbias")
# Largest difference from the float64 result that is still timed, in ulp of the largest element of the row (for int8
# results: in steps). It tells a wrong formula or a lost element, and does not judge accuracy.
TOLERANCE = {
    "f32": {"rows": 100.0, "sums": 20000.0},
    "bf16": {"rows": 20.0, "sums": 127.0},  # zeros are off by 128 at least; torch's LayerNorm comes near
    "f16": {"rows": 20.0, "sums": 1000.0},
}


@dataclass
class Problem:
    cell: Cell
    shape: Shape
    eps: float
    x: Tensor
    packed: Tensor | None  # what x is a view of
    weight: Tensor
    bias: Tensor | None = None
    residual: Tensor | None = None
    gate: Tensor | None = None
    dy: Tensor | None = None
    dsum: Tensor | None = None
    expected: dict[str, F64] = field(default_factory=dict)

    @property
    def dtype(self) -> torch.dtype:
        return self.x.dtype

    @property
    def backward(self) -> bool:
        return self.cell.direction == "backward"

    def empty(self, dtype: torch.dtype | None = None) -> Tensor:
        """A contiguous tensor of x's shape."""
        return torch.empty(self.x.shape, dtype=dtype or self.x.dtype)

    def checked_rows(self) -> NDArray[np.intp]:
        count = self.shape.row_count
        return np.unique(np.linspace(0, count - 1, min(count, CHECKED_ROWS)).astype(np.intp))


def make_problem(cell: Cell, shape: Shape) -> Problem:
    """Random operands; the same ones for the same cell."""
    generator = torch.Generator().manual_seed(1)
    dtype = TORCH_DTYPES[cell.dtype]

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator).to(dtype)

    full = (*shape.rows, shape.n)
    packed = normal(*shape.rows[:-1], shape.parts, shape.n) if shape.parts else None
    x = normal(*full) if packed is None else packed[..., : shape.rows[-1], :]
    weight = (1 + 0.1 * torch.randn(shape.n, generator=generator)).to(dtype)
    problem = Problem(cell, shape, 1e-5 if cell.kind == "layer" else 1e-6, x, packed, weight)
    if cell.kind == "layer":
        problem.bias = 0.1 * normal(shape.n)
    if cell.kind == "add_rms":
        problem.residual = normal(*full)
    if cell.kind in ("gated", "gated_after"):
        problem.gate = normal(*full)
    if problem.backward:
        problem.dy = normal(*full)
        if cell.kind == "add_rms":
            problem.dsum = normal(*full)
    return problem


# ---- the float64 side ---------------------------------------------------------------------------------


def _rows64(tensor: Tensor, rows: slice | NDArray[np.intp]) -> F64:
    flat = tensor.reshape(-1, tensor.shape[-1])
    chosen = flat[rows] if isinstance(rows, slice) else flat[torch.from_numpy(rows)]
    values: F64 = chosen.double().numpy()
    return values


def _silu(z: F64) -> tuple[F64, F64]:
    """silu(z) and its derivative."""
    sigmoid = 1 / (1 + np.exp(-z))
    return z * sigmoid, sigmoid * (1 + z * (1 - sigmoid))


def _formula(p: Problem, rows: slice | NDArray[np.intp]) -> dict[str, F64]:
    """All results for these rows; dweight and dbias are sums over these rows."""
    out: dict[str, F64] = {}
    w = p.weight.double().numpy()
    x = _rows64(p.x, rows)
    act, slope = _silu(_rows64(p.gate, rows)) if p.gate is not None else (np.ones(1), np.ones(1))
    s = x
    if p.residual is not None:
        rounded = torch.from_numpy(x + _rows64(p.residual, rows)).to(p.dtype)
        s = out["sum"] = rounded.double().numpy()
    if p.cell.kind == "gated":
        s = x * act
    mean = s.mean(-1, keepdims=True) if p.cell.kind == "layer" else 0.0
    rstd = 1 / np.sqrt(((s - mean) ** 2).mean(-1, keepdims=True) + p.eps)
    h = (s - mean) * rstd
    y = h * w + (p.bias.double().numpy() if p.bias is not None else 0.0)
    out["y"] = y * act if p.cell.kind == "gated_after" else y
    if p.cell.kind == "int8":
        scale = np.abs(y).max(-1, keepdims=True) / 127
        out = {"q": y / scale, "scale": scale}
    if p.dy is None:
        return out
    dy = _rows64(p.dy, rows)
    g = dy * w
    ds = rstd * (g - (g.mean(-1, keepdims=True) if p.cell.kind == "layer" else 0) - h * (g * h).mean(-1, keepdims=True))
    if p.dsum is not None:
        ds = ds + _rows64(p.dsum, rows)
    out["dx"] = ds * act if p.cell.kind == "gated" else ds
    if p.cell.kind == "gated":
        out["dgate"] = ds * x * slope
    out["dweight"] = (dy * h).sum(0)
    if p.bias is not None:
        out["dbias"] = dy.sum(0)
    return out


def reference(p: Problem) -> dict[str, F64]:
    """Row results on ``checked_rows``, sums over all rows."""
    out = _formula(p, p.checked_rows())
    if p.backward:
        sums: dict[str, F64] = {name: np.zeros(p.shape.n) for name in SUMS if name in out}
        step = max(1, (1 << 20) // p.shape.n)
        for begin in range(0, p.shape.row_count, step):
            part = _formula(p, slice(begin, begin + step))
            for name, total in sums.items():
                total += part[name]
        out.update(sums)
    return out


# ---- the comparison -----------------------------------------------------------------------------------


class WrongResult(Exception):
    """A contender computes something else; the message says what and by how much."""


def _ulp(magnitude: F64, dtype: str) -> F64:
    digits = {"f32": 24, "bf16": 8, "f16": 11}[dtype]
    exponent = np.frexp(np.maximum(magnitude, 1e-30))[1]
    ulp: F64 = np.ldexp(1.0, exponent - digits)
    return ulp


def check(p: Problem, results: Mapping[str, Any], tolerances: Mapping[str, float]) -> dict[str, float]:
    """The largest error of each result: in ulp of the row's largest element, of the largest one for sums over rows.

    ``tolerances`` replaces that of some results. Raises WrongResult if one that is expected is missing or wrong.
    """
    if not p.expected:
        p.expected = reference(p)
    errors: dict[str, float] = {}
    for name, want in p.expected.items():
        if name not in results:
            raise WrongResult(f"{name} is not computed")
        got_tensor: Tensor = results[name]
        sums = name in SUMS
        width = 1 if name == "scale" else p.shape.n
        if got_tensor.numel() != (p.shape.n if sums else p.shape.row_count * width):
            raise WrongResult(f"{name} has shape {tuple(got_tensor.shape)}")
        flat = got_tensor.detach().reshape(-1, width)
        got = flat.double().numpy()[0] if sums else _rows64(flat, p.checked_rows())
        if name == "q":
            difference, tolerance = float(np.abs(got - want).max()), 1.01 if p.cell.dtype == "f32" else 3.0
        else:
            ulp = _ulp(np.abs(want).max(-1, keepdims=True), p.cell.dtype)
            difference = float((np.abs(got - want) / ulp).max())
            tolerance = TOLERANCE[p.cell.dtype]["sums" if sums else "rows"]
        if not difference <= tolerances.get(name, tolerance):
            raise WrongResult(f"{name} is off by {difference:.3g} {'steps' if name == 'q' else 'ulp'}")
        errors[name] = difference
    return errors
