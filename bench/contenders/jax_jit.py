"""jax.jit of the formula as one writes it, in f32 and rounded once. It allocates its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from contenders.base import Contender, Factory, python_calls
from problem import Problem


def _formula(p: Problem) -> Callable[..., Any]:
    """Results as a tuple."""
    kind, eps, heads = p.cell.kind, p.eps, p.shape.rows[-1]
    packed = p.packed is not None

    def rms(s: Any) -> Any:
        return s * jax.lax.rsqrt(jnp.mean(s * s, -1, keepdims=True) + eps)

    def forward(x: Any, w: Any, b: Any, r: Any, z: Any) -> Any:
        if packed:
            x = x[..., :heads, :]  # jax has no views: the slice is part of the function
        wide, wide_w = x.astype(jnp.float32), w.astype(jnp.float32)
        if kind == "layer":
            d = wide - jnp.mean(wide, -1, keepdims=True)
            y = d * jax.lax.rsqrt(jnp.mean(d * d, -1, keepdims=True) + eps) * wide_w + b.astype(jnp.float32)
        elif kind == "add_rms":
            s = x + r
            return (rms(s.astype(jnp.float32)) * wide_w).astype(x.dtype), s
        elif kind == "gated":
            y = rms(wide * jax.nn.silu(z.astype(jnp.float32))) * wide_w
        elif kind == "gated_after":
            y = rms(wide) * wide_w * jax.nn.silu(z.astype(jnp.float32))
        else:
            y = rms(wide) * wide_w
        if kind == "int8":
            scale = jnp.max(jnp.abs(y), -1, keepdims=True) / 127
            return jnp.round(y / scale).astype(jnp.int8), scale
        return (y.astype(x.dtype),)

    return forward


def _array(tensor: Tensor | None) -> Any:
    """The tensor's memory as a jax array."""
    return None if tensor is None else jnp.from_dlpack(tensor.contiguous())


def _tensors(names: tuple[str, ...], arrays: tuple[Any, ...]) -> dict[str, Tensor]:
    return {name: from_dlpack(array) for name, array in zip(names, arrays, strict=True) if array is not None}


def jax_jit(p: Problem, threads: int) -> Contender:
    forward = _formula(p)
    names = {"int8": ("q", "scale"), "add_rms": ("y", "sum")}.get(p.cell.kind, ("y",))
    x = p.x if p.packed is None else p.packed
    operands = tuple(_array(t) for t in (x, p.weight, p.bias, p.residual, p.gate))
    slopes = tuple(_array(t) for t in (p.dy, p.dsum) if t is not None)

    def both(slopes: Any, *operands: Any) -> Any:
        y, pull = jax.vjp(forward, *operands)
        return y, pull(slopes)

    arguments = (slopes, *operands) if p.backward else operands
    compiled = jax.jit(both if p.backward else forward).lower(*arguments).compile()

    def function() -> Any:
        return jax.block_until_ready(compiled(*arguments))

    def results() -> Mapping[str, Any]:
        if not p.backward:
            return _tensors(names, function())
        y, grads = function()
        out = _tensors(names, y) | _tensors(("dx", "dweight", "dbias", "dresidual", "dgate"), grads)
        if p.packed is not None:
            out["dx"] = out["dx"][..., : p.shape.rows[-1], :]
        return out

    return Contender(python_calls(function), results, allocates=True)


FACTORIES: dict[str, Factory] = {"jax": jax_jit}
