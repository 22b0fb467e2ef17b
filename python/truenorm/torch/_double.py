"""Derivatives that the library does not have itself, in torch operations and double precision: of the backward
(double backward) and of the forward in forward mode.

With d = s - mean (LayerNorm) or s, v = sum(d^2)/D, q = f(v) and h = d q, the Jacobian of h is symmetric:

    J u = q P u + a d <d u>         a = 2 f'(v)/D,  P removes the mean (LayerNorm) or is the identity

and dx = J (dy w), dweight = sum dy h, dbias = sum dy. For t = <p, dx> + <u, dweight> + <c, dbias>:

    dt/d(dy) = w (J p) + u h + c
    dt/dw    = sum dy (J p)
    dt/dx    = P [a (p P G) d + b <d p> <d G> d + a (<d G> p + <d p> G)] + J (u dy)      G = dy w, b = 4 f''/D^2

For RMSNorm (f = (v + eps)^-1/2) a = -q^3/D and b = 3 q^5/D^2: Zhang & Sennrich 2019, differentiated twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

KIND_LAYER, KIND_L2 = 1, 2
_INSIDE, _OUTSIDE = 0, 1


@dataclass(frozen=True)
class Options:
    """The options of ``norm`` by name, as integers (torch_ops.cpp)."""

    kind: int = 0
    eps: float = 1e-6
    eps_mode: int = 0
    cast: int = 0
    grade: int = 0
    flags: int = 0
    weight_offset: float = 0.0
    divisor: float = 0.0
    group: int = 0
    partial: int = 0
    positions: int = 1
    sum_mode: int = 0
    gate_order: int = 0
    act: int = 0
    sum_dtype: torch.dtype | None = None
    out_dtype: torch.dtype | None = None

    def is_partial(self, n: int) -> bool:
        """Whether the statistics leave elements out, which makes the Jacobian unsymmetric."""
        return bool(self.partial) and self.partial != (self.group or n)


def _factor(v: Tensor, options: Options) -> tuple[Tensor, Tensor, Tensor]:
    """q = f(v), f'(v), f''(v); all 0 where q is not finite (a zero row with eps = 0 has the gradient 0)."""
    eps = options.eps
    if options.eps_mode == _INSIDE:
        q = (v + eps).rsqrt()
        first, second = -0.5 * q**3, 0.75 * q**5
    elif options.eps_mode == _OUTSIDE:
        root = v.sqrt()
        q = 1 / (root + eps)
        first, second = -(q**2) / (2 * root), q**3 / (2 * v) + q**2 / (4 * v * root)
    else:
        q = v.rsqrt()
        clamped = v.sqrt() <= eps
        zero = torch.zeros_like(q)
        first, second = torch.where(clamped, zero, -0.5 * q**3), torch.where(clamped, zero, 0.75 * q**5)
        q = torch.where(clamped, zero + (1 / eps if eps else 0.0), q)
    dead = ~(q.isfinite() & first.isfinite() & second.isfinite()) & (v == 0)
    return tuple(t.masked_fill(dead, 0.0) for t in (q, first, second))  # type: ignore[return-value]


class _Rows:
    """The rows of one call: [..., n] seen as [..., groups, group]."""

    def __init__(self, x: Tensor, residual: Tensor | None, options: Options) -> None:
        s = x.double()
        if residual is not None:
            s = s + residual.double()
            if options.sum_mode == 0:
                rounded = s.detach().to(options.sum_dtype or x.dtype).double()
                s = s + (rounded - s.detach())  # a rounding has the gradient of the identity
        self.options = options
        self.shape = x.shape
        self.group = options.group or x.shape[-1]
        s = self.split(s)
        self.d = self.project(s)
        count = 1.0 if options.kind == KIND_L2 else float(self.group)
        self.divisor = options.divisor or count
        v = (self.d * self.d).sum(-1, keepdim=True) / self.divisor
        self.q, first, second = _factor(v, options)
        self.a = 2 * first / self.divisor
        self.b = 4 * second / self.divisor**2

    def split(self, t: Tensor) -> Tensor:
        return t.double().expand(self.shape).reshape(*self.shape[:-1], self.shape[-1] // self.group, self.group)

    def join(self, t: Tensor) -> Tensor:
        return t.reshape(self.shape)

    def project(self, t: Tensor) -> Tensor:
        return t - t.mean(-1, keepdim=True) if self.options.kind == KIND_LAYER else t

    def dot(self, t: Tensor, u: Tensor) -> Tensor:
        return (t * u).sum(-1, keepdim=True)

    def jacobian(self, u: Tensor) -> Tensor:
        return self.q * self.project(u) + self.a * self.d * self.dot(self.d, u)

    def curvature(self, p: Tensor, g: Tensor) -> Tensor:
        """The gradient of <p, J(s) g> with respect to s."""
        d, dp, dg = self.d, self.dot(self.d, p), self.dot(self.d, g)
        inner = self.a * self.dot(p, self.project(g)) * d + self.b * dp * dg * d + self.a * (dg * p + dp * g)
        return self.project(inner)


def _widen(param: Tensor, positions: int) -> Tensor:
    wide = param.double()
    return wide.repeat_interleave(positions, -1) if positions > 1 else wide


def _reduce(t: Tensor, like: Tensor, positions: int) -> Tensor:
    if positions > 1:
        t = t.reshape(*t.shape[:-1], t.shape[-1] // positions, positions).sum(-1)
    return t.sum_to_size(like.shape).to(like.dtype)


def double_backward(
    grads: dict[str, Tensor | None], dy: Tensor, x: Tensor, weight: Tensor | None, residual: Tensor | None, o: Options
) -> dict[str, Tensor | None]:
    """Gradients of the backward's results with respect to its inputs.

    ``grads`` holds those of dx, dresidual, dweight and dbias (None for zero). Returns those of dy, x, weight,
    residual and dsum, each of its input's shape and dtype.
    """
    rows = _Rows(x, residual, o)
    p_x, p_r = grads["dx"], grads["dresidual"]
    flow = p_x.double() if p_x is not None else None
    if p_r is not None:
        flow = p_r.double() if flow is None else flow + p_r.double()
    w = None if weight is None else _widen(weight, o.positions) + o.weight_offset
    out: dict[str, Any] = dict.fromkeys(("dy", "x", "weight", "residual", "dsum"))
    d_dy: Any = 0
    d_x: Any = 0
    dy64 = dy.double()
    if flow is not None:
        p = rows.split(flow)
        g = rows.split(dy64 if w is None else dy64 * w)
        jp = rows.join(rows.jacobian(p))
        d_dy = jp if w is None else jp * w
        d_x = rows.curvature(p, g)
        if weight is not None:
            out["weight"] = _reduce(dy64 * jp, weight, o.positions)
    if grads["dweight"] is not None:
        u = _widen(grads["dweight"], o.positions)
        d_dy = d_dy + u * rows.join(rows.d * rows.q)
        d_x = d_x + rows.jacobian(rows.split(u * dy64))
    if grads["dbias"] is not None:
        d_dy = d_dy + _widen(grads["dbias"], o.positions)
    if isinstance(d_dy, Tensor):
        out["dy"] = d_dy.expand(x.shape).to(dy.dtype)
    if isinstance(d_x, Tensor):
        out["x"] = rows.join(d_x).to(x.dtype)
        out["residual"] = None if residual is None else rows.join(d_x).to(residual.dtype)
    out["dsum"] = flow
    return out


def forward_derivative(
    tangents: dict[str, Tensor | None], x: Tensor, weight: Tensor | None, residual: Tensor | None, o: Options
) -> Tensor:
    """The tangent of y, in double precision: w J (dx + dresidual) + h dweight + dbias."""
    rows = _Rows(x, residual, o)
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for name in ("x", "residual"):
        tangent = tangents[name]
        if tangent is not None:
            out = out + rows.join(rows.jacobian(rows.split(tangent)))
    if weight is not None:
        out = out * (_widen(weight, o.positions) + o.weight_offset)
    if tangents["weight"] is not None:
        out = out + _widen(tangents["weight"], o.positions) * rows.join(rows.d * rows.q)
    return out if tangents["bias"] is None else out + _widen(tangents["bias"], o.positions)
