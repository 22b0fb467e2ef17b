"""ONNX operators that are one norm: attributes and inputs to a call.

Sources: the operator schemas of onnx 1.23 (domain ai.onnx), and ONNX Runtime's contrib schemas of
SimplifiedLayerNormalization, SkipLayerNormalization and SkipSimplifiedLayerNormalization (domain com.microsoft),
which compute in f32 and round once: the sum that they normalise is the unrounded one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from .kernels import (
    F32,
    F64,
    FLOATS,
    Array,
    Dtype,
    Kind,
    Norm,
    Unsupported,
    kept_shape,
    normalise,
    normalise_groups,
    residual_norm,
    statistics,
)

Inputs = Sequence[Array | None]
Outputs = list[Array | None]
Attributes = dict[str, Any]


def attributes(node: onnx.NodeProto) -> Attributes:
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def float_dtype(elem_type: int) -> Dtype:
    """The NumPy dtype of an ONNX element type; only those that the kernels know."""
    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(elem_type))
    except (KeyError, ValueError):
        raise Unsupported(f"element type {elem_type}") from None
    if dtype not in FLOATS:
        raise Unsupported(f"element type {onnx.TensorProto.DataType.Name(elem_type)}")
    return dtype


def rounded_eps(eps: float, dtype: Dtype) -> float:
    """epsilon is an f32 attribute, and stage one casts it to its own format."""
    return float(np.float32(eps).astype(dtype))


def trailing_axes(axis: int, rank: int) -> tuple[int, ...]:
    if not -rank <= axis < rank:
        raise Unsupported(f"axis {axis} of a tensor of rank {rank}")
    return tuple(range(axis % rank, rank))


def layer_normalization(inputs: Inputs, attrs: Attributes, version: int) -> Outputs:
    """LayerNormalization-17: X, Scale, B (optional) -> Y, Mean, InvStdDev."""
    x, scale, bias = (*inputs, None)[:3]
    assert x is not None and scale is not None
    stash = float_dtype(attrs.get("stash_type", 1))
    axes = trailing_axes(attrs.get("axis", -1), x.ndim)
    norm = Norm("layer", axes, rounded_eps(attrs.get("epsilon", 1e-5), stash), stash, (x.dtype,))
    mean, inverse = statistics(norm, x)
    return [normalise(norm, x, scale, bias, x.dtype), mean.astype(stash), inverse.astype(stash)]


def rms_normalization(inputs: Inputs, attrs: Attributes, version: int) -> Outputs:
    """RMSNormalization-23: X, scale -> Y of scale's dtype."""
    x, scale = inputs[:2]
    assert x is not None and scale is not None
    stash = float_dtype(attrs.get("stash_type", 1))
    axes = trailing_axes(attrs.get("axis", -1), x.ndim)
    norm = Norm("rms", axes, rounded_eps(attrs.get("epsilon", 1e-5), stash), stash, (x.dtype,))
    return [normalise(norm, x, scale, None, scale.dtype)]


def group_normalization(inputs: Inputs, attrs: Attributes, version: int) -> Outputs:
    """GroupNormalization-18 (one scale for each group, stage one in T) and -21 (one for each channel)."""
    x, scale, bias = inputs[:3]
    assert x is not None and scale is not None and bias is not None
    groups = attrs.get("num_groups", 0)
    stash = x.dtype
    if version >= 21:
        stash = float_dtype(attrs.get("stash_type", 1))
    elif groups and x.ndim > 1 and scale.shape == bias.shape == (groups,):
        scale, bias = (np.repeat(v, x.shape[1] // groups) for v in (scale, bias))
    else:
        raise Unsupported(f"scale {list(scale.shape)}, bias {list(bias.shape)} for {groups} groups (opset 18)")
    norm = Norm("layer", (), rounded_eps(attrs.get("epsilon", 1e-5), stash), stash, (x.dtype,))
    return [normalise_groups(norm, x, groups, scale, bias, x.dtype)]


def instance_normalization(inputs: Inputs, attrs: Attributes, version: int) -> Outputs:
    """InstanceNormalization-1, -6, -22: a group for each channel; rounded once."""
    x, scale, bias = inputs[:3]
    assert x is not None and scale is not None and bias is not None
    if x.ndim < 3:
        raise Unsupported(f"InstanceNormalization of x of shape {list(x.shape)}")
    norm = Norm("layer", (), rounded_eps(attrs.get("epsilon", 1e-5), F32), F64)
    return [normalise_groups(norm, x, x.shape[1], scale, bias, x.dtype)]


def lp_normalization(inputs: Inputs, attrs: Attributes, version: int) -> Outputs:
    """LpNormalization-1, -22 with p = 2: x / sqrt(sum x^2) along one axis, 0 for a zero row."""
    x = inputs[0]
    assert x is not None
    if attrs.get("p", 2) != 2:
        raise Unsupported(f"LpNormalization with p = {attrs['p']}")
    axis = trailing_axes(attrs.get("axis", -1), x.ndim)[0]
    return [normalise(Norm("l2", (axis,), 0.0, F64), x, None, None, x.dtype)]


def mean_variance_normalization(inputs: Inputs, attrs: Attributes, version: int) -> Outputs:
    """MeanVarianceNormalization-9, -13: (x - mean) / (sqrt(var) + 1e-9), over axes 0, 2, 3 by default."""
    x = inputs[0]
    assert x is not None
    axes = tuple(sorted(trailing_axes(a, x.ndim)[0] for a in attrs.get("axes", [0, 2, 3])))
    norm = Norm("layer", axes, float(np.float32(1e-9)), F64, eps_mode="outside")
    return [normalise(norm, x, None, None, x.dtype)]


def simplified_layer_normalization(inputs: Inputs, attrs: Attributes, version: int) -> Outputs:
    """SimplifiedLayerNormalization-1: RMSNorm in f32 (f64 for f64), rounded once -> Y, InvStdDev."""
    x, scale = inputs[:2]
    assert x is not None and scale is not None
    axes = trailing_axes(attrs.get("axis", -1), x.ndim)
    norm = Norm("rms", axes, rounded_eps(attrs.get("epsilon", 1e-5), F32), F64)
    _, inverse = statistics(norm, x)
    stash = float_dtype(attrs.get("stash_type", 1))
    return [normalise(norm, x, scale, None, scale.dtype), inverse.astype(stash)]


def _skip(kind: Kind, inputs: Inputs, beta: Array | None, shift: Array | None, attrs: Attributes) -> Outputs:
    """input + skip (+ bias), normalised unrounded; -> output, mean, inv_std_var, the sum in input's dtype."""
    x, skip, gamma = inputs[:3]
    assert x is not None and skip is not None and gamma is not None
    n = x.shape[-1]
    try:
        residual = np.broadcast_to(skip, x.shape)
    except ValueError:
        raise Unsupported(f"skip of shape {list(skip.shape)} for input {list(x.shape)}") from None
    if shift is not None:
        residual = residual.astype(F64) + shift.astype(F64)
    eps = rounded_eps(attrs.get("epsilon", 1e-12), F32)
    y, total, mean, inverse = residual_norm(kind, x.reshape(-1, n), residual.reshape(-1, n), gamma, beta, eps)
    kept = kept_shape(x.shape, (x.ndim - 1,))
    return [y.reshape(x.shape), mean.reshape(kept), inverse.reshape(kept), total.reshape(x.shape)]


def skip_layer_normalization(inputs: Inputs, attrs: Attributes, version: int) -> Outputs:
    """SkipLayerNormalization-1: input, skip, gamma, beta (optional), bias (optional)."""
    beta, shift = (*inputs[3:], None, None)[:2]
    return _skip("layer", inputs, beta, shift, attrs)


def skip_simplified_layer_normalization(inputs: Inputs, attrs: Attributes, version: int) -> Outputs:
    """SkipSimplifiedLayerNormalization-1: input, skip, gamma, bias (optional)."""
    return _skip("rms", inputs, None, (*inputs[3:], None)[0], attrs)
