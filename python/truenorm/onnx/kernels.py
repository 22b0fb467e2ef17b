"""From the shapes and dtypes of ONNX to calls of the kernels.

Where a value is rounded follows the function bodies in the ONNX standard (LayerNormalization-17,
RMSNormalization-23, GroupNormalization-21), which are those operators' definition:

    xs = Cast<stash>(x)                       rounds only if stash holds less than x's dtype
    h  = Cast<T>((xs - mean) / sqrt(var + eps))
    y  = h * scale + bias                     in T

A 16-bit T rounds h, the product and the sum, as the body does. f32 and f64 results are rounded once, at the end: the
body says in which format its operations run, not how exact they are. Inside stage one nothing is rounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

import truenorm

Array = npt.NDArray[Any]
Dtype = np.dtype[Any]

F64, F32, F16 = np.dtype(np.float64), np.dtype(np.float32), np.dtype(np.float16)
BF16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = (F64, F32, F16, BF16)

Kind = Literal["rms", "layer", "l2"]
EpsMode = Literal["inside", "outside"]


class Unsupported(ValueError):
    """An operator, attribute, dtype or shape that the kernels do not compute; the message names it."""


def holds(wide: Dtype, narrow: Dtype) -> bool:
    """Whether every value of `narrow` is one of `wide`."""
    return wide in (narrow, F64) or (wide == F32 and narrow != F64)


def is_half(dtype: Dtype) -> bool:
    return dtype in (F16, BF16)


@dataclass(frozen=True)
class Norm:
    """What stage one computes, and where its result is rounded.

    axes: the reduced axes of x, ascending, none negative. stash: x is rounded to it first, if it holds less.
    through: the formats that h passes on its way to the scale.
    """

    kind: Kind
    axes: tuple[int, ...]
    eps: float
    stash: Dtype
    through: tuple[Dtype, ...] = ()
    eps_mode: EpsMode = "inside"


def stage_one(norm: Norm, x: Array) -> tuple[Array, Dtype | None]:
    """x as stage one sees it, and the format that h is rounded to before the scale (None: not rounded)."""
    seen = x if holds(norm.stash, x.dtype) else x.astype(norm.stash)
    path = (norm.stash, *norm.through)
    narrow = [d for d in path if is_half(d) or not holds(d, x.dtype)]
    if not narrow:
        return seen, None
    least = min(narrow, key=lambda d: d.itemsize)
    if not all(holds(d, least) for d in path):
        raise Unsupported(f"h rounded to both of {' and '.join(sorted(d.name for d in path))}")
    return seen, least


def as_rows(x: Array, axes: tuple[int, ...]) -> Array:
    """x with the reduced axes moved last and flattened: [rows, n]."""
    kept = [a for a in range(x.ndim) if a not in axes]
    n = int(np.prod([x.shape[a] for a in axes], dtype=np.int64))
    rows = int(np.prod([x.shape[a] for a in kept], dtype=np.int64))
    return x.transpose([*kept, *axes]).reshape(rows, n)


def from_rows(rows: Array, shape: tuple[int, ...], axes: tuple[int, ...]) -> Array:
    """The inverse of as_rows, for an array of that shape."""
    order = [*(a for a in range(len(shape)) if a not in axes), *axes]
    moved = rows.reshape([shape[a] for a in order])
    return moved.transpose(np.argsort(order)) if order != sorted(order) else moved


def kept_shape(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(1 if a in axes else d for a, d in enumerate(shape))


def parameter(value: Array, shape: tuple[int, ...], axes: tuple[int, ...]) -> Array:
    """A scale or bias, broadcast to x's shape, as the kernels take it: [n], or [rows, n] if rows differ."""
    try:
        full = np.broadcast_to(value, shape)
    except ValueError:
        raise Unsupported(f"a scale or bias of shape {list(value.shape)} for x {list(shape)}") from None
    kept = [a for a in range(len(shape)) if a not in axes]
    if all(full.strides[a] == 0 or shape[a] == 1 for a in kept) and 0 not in shape:
        first = full[tuple(slice(None) if a in axes else slice(1) for a in range(len(shape)))]
        return np.asarray(as_rows(first, axes)[0])
    return as_rows(full, axes)


def scaled(
    norm: Norm,
    rows: Array,
    rounded: Dtype | None,
    weight: Array | None,
    bias: Array | None,
    out: Dtype,
    positions: int | None = None,
) -> Array:
    """One call: rows are normalised over the last axis, times weight, plus bias, in `out`."""
    cast: Literal["once", "before_scale", "t5"] = "once"
    if rounded is not None and weight is None and bias is None:
        # h is the result, through its narrowest format.
        result = truenorm.norm(rows, kind=norm.kind, eps=norm.eps, eps_mode=norm.eps_mode, out_dtype=rounded)
        return np.asarray(result).astype(out)
    if rounded == rows.dtype:
        cast = "before_scale"
    elif rounded is not None and weight is not None and weight.dtype == rounded and is_half(rounded):
        cast = "t5"
    elif rounded is not None:
        raise Unsupported(f"h of {rows.dtype} rounded to {rounded} before the scale")
    y = truenorm.norm(
        rows,
        weight,
        bias,
        kind=norm.kind,
        eps=norm.eps,
        eps_mode=norm.eps_mode,
        cast=cast,
        round_product=is_half(out) and rounded is not None and bias is not None,
        positions=positions,
        out_dtype=out,
    )
    return np.asarray(y)


def normalise(norm: Norm, x: Array, scale: Array | None, bias: Array | None, out: Dtype) -> Array:
    """y of x's shape. scale and bias broadcast to x, as the standard's unidirectional broadcasting."""
    seen, rounded = stage_one(norm, x)
    weight = None if scale is None else parameter(scale, x.shape, norm.axes)
    shift = None if bias is None else parameter(bias, x.shape, norm.axes)
    rows = as_rows(seen, norm.axes)
    return from_rows(scaled(norm, rows, rounded, weight, shift, out), x.shape, norm.axes)


def normalise_groups(norm: Norm, x: Array, groups: int, scale: Array | None, bias: Array | None, out: Dtype) -> Array:
    """GroupNorm of x [N, C, ...], scale and bias [C]; norm.axes is not used."""
    if x.ndim < 2 or groups < 1 or x.shape[1] % groups:
        raise Unsupported(f"{groups} groups for x of shape {list(x.shape)}")
    batch, channels = x.shape[:2]
    positions = int(np.prod(x.shape[2:], dtype=np.int64))
    for value in (scale, bias):
        if value is not None and value.shape != (channels,):
            raise Unsupported(f"a scale or bias of shape {list(value.shape)} for {channels} channels")
    seen, rounded = stage_one(norm, x)
    rows = seen.reshape(batch, groups, channels // groups * positions)
    weight = None if scale is None else scale.reshape(groups, channels // groups)
    shift = None if bias is None else bias.reshape(groups, channels // groups)
    return scaled(norm, rows, rounded, weight, shift, out, positions or None).reshape(x.shape)


def statistics(norm: Norm, x: Array) -> tuple[Array, Array]:
    """mean (0 but for "layer") and 1/sqrt(var + eps) of stage one in f64, with the reduced axes kept as 1."""
    seen, _ = stage_one(norm, x)
    rows = as_rows(seen, norm.axes)
    _, mean, rstd = truenorm.norm(rows, kind=norm.kind, eps=norm.eps, eps_mode=norm.eps_mode, stats=np.float64)
    shape = kept_shape(x.shape, norm.axes)
    return (np.zeros(shape) if mean is None else mean.reshape(shape)), rstd.reshape(shape)


def residual_norm(
    kind: Kind, x: Array, residual: Array, weight: Array, bias: Array | None, eps: float
) -> tuple[Array, Array, Array, Array]:
    """Rows of x + residual, normalised unrounded: y, the sum rounded to x's dtype, mean and rstd in f32."""
    y, total, mean, rstd = truenorm.norm(
        x,
        weight,
        bias,
        kind=kind,
        eps=eps,
        residual=residual,
        sum="exact",
        sum_dtype=x.dtype,
        out_dtype=x.dtype,
        stats=np.float32,
    )
    return y, total, np.zeros_like(rstd) if mean is None else mean, rstd
