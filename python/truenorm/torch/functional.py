"""The norms as functions of tensors.

Shapes: x is [..., n], normalised over its last axis (``normalized_shape``: its last axes). weight and bias are [n], or
broadcast over the leading axes of x as far as two row strides can say it ([heads, n], [batch, 1, n], x's own shape).
Dtypes: each operand float64, float32, bfloat16 or float16, in any mixture; nothing is converted beforehand. Devices:
the CPU. Formulas and accuracy: docs/numerics.md.

Any strides are read as they are (see torch_layout.h for when a copy is made); results are contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor

from truenorm.torch import _autograd
from truenorm.torch._autograd import transformed
from truenorm.torch._library import ops

__all__ = [
    "add_rms_norm",
    "gated_rms_norm",
    "group_norm",
    "l2_norm",
    "layer_norm",
    "norm",
    "norm_quantized",
    "norm_with_stats",
    "normalize",
    "rms_norm",
]

Cast = Literal["once", "before_scale", "t5"]

_rms, _rms_no_grad = _autograd.rms_norm, ops.rms_norm.no_grad
_layer, _layer_no_grad = _autograd.layer_norm, ops.layer_norm.no_grad
_norm, _norm_no_grad = _autograd.norm, ops.norm.no_grad
_add, _add_no_grad = _autograd.add_norm, ops.add_norm.no_grad

_KINDS = {"rms": 0, "layer": 1, "l2": 2}
_EPS_MODES = {"inside": 0, "outside": 1, "clamp": 2}
_CASTS = {"once": 0, "before_scale": 1, "t5": 2}
_GRADES = {"exact": 0, "fast": 1}
_SUMS = {"rounded": 0, "exact": 1}
_GATES = {"before": 1, "after": 2}
_ACTS = {"silu": 0, "sigmoid": 1}
_ROUND_RSTD, _ROUND_OFFSET, _ROUND_PRODUCT = 1, 2, 4
_EPS64, _EPS32 = torch.finfo(torch.float64).eps, torch.finfo(torch.float32).eps


def _choice(table: dict[str, int], name: str, value: str) -> int:
    number = table.get(value)
    if number is None:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, table))}, not {value!r}")
    return number


def _default_eps(dtype: torch.dtype) -> float:
    """torch's rule for ``eps=None``: the epsilon of the type that it computes in."""
    return _EPS64 if dtype == torch.float64 else _EPS32


def _flattened(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Checks ``normalized_shape`` in torch's words; x with those axes made one, weight and bias made [n].

    Raises RuntimeError.
    """
    shape = list(shape)
    if not shape:
        raise RuntimeError(
            "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one element, "
            f"but got normalized_shape = {shape}"
        )
    for label, param in (("weight", weight), ("bias", bias)):
        if param is not None and list(param.shape) != shape:
            raise RuntimeError(
                f"Expected {label} to be of same shape as normalized_shape, but got {label} of shape "
                f"{list(param.shape)} and normalized_shape = {shape}"
            )
    axes = len(shape)
    if x.dim() < axes or list(x.shape[x.dim() - axes :]) != shape:
        wanted = ", ".join(["*", *map(str, shape)])
        raise RuntimeError(
            f"Given normalized_shape={shape}, expected input with shape [{wanted}], but got input of "
            f"size{list(x.shape)}"
        )
    if axes == 1:
        return x, weight, bias
    n = prod(shape)
    x = x.reshape(*x.shape[: x.dim() - axes], n)
    return x, None if weight is None else weight.reshape(n), None if bias is None else bias.reshape(n)


def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int] | None = None,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    cast: Cast = "once",
    weight_offset: float = 0.0,
) -> Tensor:
    """y = (weight + weight_offset) x / sqrt(mean(x^2) + eps), as ``torch.nn.functional.rms_norm``.

    ``normalized_shape`` None: the last axis. ``eps`` None: torch's rule. ``cast`` says where it is rounded: "once" at
    the end, to x's dtype; "before_scale" as Llama; "t5" as T5. Zhang & Sennrich 2019 (arXiv 1910.07467).

    Raises RuntimeError for shapes that do not fit, with torch's messages.
    """
    x = input
    if normalized_shape is not None and not (
        x.shape[-1:] == normalized_shape and (weight is None or weight.shape == normalized_shape)
    ):
        x, weight, _ = _flattened(x, normalized_shape, weight, None)
    if eps is None:
        eps = _default_eps(x.dtype)
    code = 0 if cast == "once" else _choice(_CASTS, "cast", cast)
    if (
        torch.is_grad_enabled() and (x.requires_grad or (weight is not None and weight.requires_grad))
    ) or transformed():
        y: Tensor = _rms(x, weight, eps, code, weight_offset)
    else:
        y = _rms_no_grad(x, weight, eps, code, weight_offset)
    return y if x is input else y.view(input.shape)


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int] | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """y = weight (x - mean) / sqrt(var + eps) + bias, as ``torch.nn.functional.layer_norm``; x's dtype.

    ``normalized_shape`` None: the last axis. Ba et al. 2016 (arXiv 1607.06450). Raises RuntimeError as ``rms_norm``.
    """
    x = input
    if normalized_shape is not None and not (
        x.shape[-1:] == normalized_shape
        and (weight is None or weight.shape == normalized_shape)
        and (bias is None or bias.shape == normalized_shape)
    ):
        x, weight, bias = _flattened(x, normalized_shape, weight, bias)
    if (
        torch.is_grad_enabled()
        and (
            x.requires_grad
            or (weight is not None and weight.requires_grad)
            or (bias is not None and bias.requires_grad)
        )
    ) or transformed():
        y: Tensor = _layer(x, weight, bias, eps)
    else:
        y = _layer_no_grad(x, weight, bias, eps)
    return y if x is input else y.view(input.shape)


# ---- everything else --------------------------------------------------------------------------------


def _like(x: Tensor, operand: Tensor | None) -> Tensor | None:
    """An elementwise operand, broadcast to x's shape without a copy."""
    return operand if operand is None or operand.shape == x.shape else operand.expand(x.shape)


def _options(
    kind: str,
    eps: float | None,
    dtype: torch.dtype,
    *,
    eps_mode: str = "inside",
    cast: str = "once",
    grade: str = "exact",
    weight_offset: float = 0.0,
    divisor: float | None = None,
    group: int | None = None,
    partial: int | None = None,
    positions: int | None = None,
    sum: str = "rounded",
    sum_dtype: torch.dtype | None = None,
    gate: Tensor | None = None,
    gate_order: str = "before",
    act: str = "silu",
    round_rstd: bool = False,
    round_offset: bool = False,
    round_product: bool = False,
    out_dtype: torch.dtype | None = None,
) -> tuple[Any, ...]:
    """The options of the operators (torch_ops.cpp), in order."""
    flags = _ROUND_RSTD * round_rstd | _ROUND_OFFSET * round_offset | _ROUND_PRODUCT * round_product
    return (
        _choice(_KINDS, "kind", kind),
        _default_eps(dtype) if eps is None else eps,
        _choice(_EPS_MODES, "eps_mode", eps_mode),
        _choice(_CASTS, "cast", cast),
        _choice(_GRADES, "grade", grade),
        flags,
        weight_offset,
        divisor or 0.0,
        group or 0,
        partial or 0,
        positions or 1,
        _choice(_SUMS, "sum", sum),
        0 if gate is None else _choice(_GATES, "gate_order", gate_order),
        _choice(_ACTS, "act", act),
        sum_dtype,
        out_dtype,
    )


_NO_OPTIONS = _options("rms", 0.0, torch.float32)[2:]


def _differentiable(*tensors: Tensor | None) -> bool:
    if torch.is_grad_enabled():
        for t in tensors:
            if t is not None and t.requires_grad:
                return True
    return transformed()


def norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    kind: Literal["rms", "layer", "l2"] = "rms",
    eps: float | None = 1e-6,
    residual: Tensor | None = None,
    gate: Tensor | None = None,
    mod_scale: Tensor | None = None,
    mod_shift: Tensor | None = None,
    **options: Any,
) -> Any:
    """Any norm that the library has.

    s = x (+ residual), s = s act(gate) with gate_order "before"; m = mean(s) for "layer"; v = mean((s - m)^2), or the
    sum for "l2"; h = (s - m) / sqrt(v + eps); y = weight' h + bias, times act(gate) with gate_order "after";
    y (1 + mod_scale) + mod_shift. weight' = weight + weight_offset.

    Options: eps_mode ("inside", "outside", "clamp"), cast ("once", "before_scale", "t5"), grade ("exact", "fast"),
    weight_offset, divisor (replaces the element count), group (statistics over each group of that many elements),
    partial (statistics from the first elements only), positions (elements that share one of weight and bias), sum
    ("rounded", "exact": what the norm sees of x + residual), sum_dtype, gate_order, act ("silu", "sigmoid"),
    round_rstd, round_offset, round_product (further roundings), out_dtype (None: that of the cast mode).

    residual and gate have x's shape or broadcast to it; mod_scale and mod_shift broadcast as weight does.
    Returns y, or (y, sum) with a residual; y and sum have x's shape. Raises RuntimeError for operands that do not fit
    together, ValueError for an unknown name.
    """
    residual, gate = _like(x, residual), _like(x, gate)
    args = (x, weight, bias, residual, gate, mod_scale, mod_shift)
    if options or gate is not None or eps is None:
        opts = _options(kind, eps, x.dtype, gate=gate, **options)
    else:
        opts = (_choice(_KINDS, "kind", kind), eps, *_NO_OPTIONS)
    if residual is not None:
        return (_add if _differentiable(*args) else _add_no_grad)(*args, *opts)
    return (_norm if _differentiable(*args) else _norm_no_grad)(*args, *opts)


def norm_with_stats(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    kind: Literal["rms", "layer", "l2"] = "rms",
    eps: float | None = 1e-6,
    stats_dtype: torch.dtype | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, mean, rstd): as ``norm``, and the statistics of each row and group, [..., groups].

    The backward reads them instead of computing them again. ``stats_dtype`` float32 or float64 (None: float64 for
    float64 rows, else float32, which costs the backward a few ulp). They are not differentiable themselves.
    """
    args = (x, weight, bias, None, None, None, None)
    result: tuple[Tensor, Tensor, Tensor] = _autograd.norm_stats(
        *args, *_options(kind, eps, x.dtype, **options), stats_dtype
    )
    return result


def norm_quantized(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype = torch.int8,
    scale: Tensor | None = None,
    kind: Literal["rms", "layer", "l2"] = "rms",
    eps: float | None = 1e-6,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """(q, scale) with q = y / scale rounded to int8, float8_e4m3fn or float8_e5m2.

    ``scale``: given (one element, or [..., 1] for each row), or None: max|y| of the row over the largest number of the
    dtype, float32 [..., 1]. Not differentiable.
    """
    args = (x, weight, bias, None, None, None, None)
    opts = _options(kind, eps, x.dtype, out_dtype=out_dtype, **options)
    if scale is None:
        result: tuple[Tensor, Tensor] = ops.norm_quantized(*args, *opts)
        return result
    return ops.norm_scaled(scale, *args, *opts), scale


# ---- the common ones by name ------------------------------------------------------------------------


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, eps: float | None = 1e-6, **options: Any
) -> tuple[Tensor, Tensor]:
    """(y, sum): sum = x + residual, y its RMSNorm. Options as ``norm``."""
    result: tuple[Tensor, Tensor] = norm(x, weight, eps=eps, residual=residual, **options)
    return result


def gated_rms_norm(
    x: Tensor, gate: Tensor, weight: Tensor | None = None, eps: float | None = 1e-6, **options: Any
) -> Tensor:
    """RMSNorm of x act(gate) (``gate_order="before"``, Mamba 2), or RMSNorm of x, times act(gate) ("after")."""
    y: Tensor = norm(x, weight, eps=eps, gate=gate, **options)
    return y


def l2_norm(x: Tensor, weight: Tensor | None = None, *, eps: float = 1e-6, **options: Any) -> Tensor:
    """x / sqrt(sum(x^2) + eps) over the last axis; ``eps_mode`` "clamp" divides by max(||x||, eps)."""
    y: Tensor = norm(x, weight, kind="l2", eps=eps, **options)
    return y


def normalize(input: Tensor, p: float = 2.0, dim: int | tuple[int, ...] = 1, eps: float = 1e-12) -> Tensor:
    """x / max(||x||_2, eps) over ``dim``, as ``torch.nn.functional.normalize`` with p = 2.

    Raises NotImplementedError for another p.
    """
    if p != 2.0:
        raise NotImplementedError(f"truenorm: normalize has p = 2 only, not {p}")
    if input.dim() == 0:
        return normalize(input.reshape(1), p, 0, eps).reshape(())
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    last = tuple(range(-len(dims), 0))
    moved = input.movedim(dims, last)
    rows = moved if len(dims) == 1 else moved.flatten(-len(dims))
    y: Tensor = norm(rows, kind="l2", eps=eps, eps_mode="clamp")
    return y.reshape(moved.shape).movedim(last, dims)


def _check_group_norm(x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None) -> None:
    """torch's checks of group_norm, in its words. Raises RuntimeError."""
    if x.dim() < 2:
        raise RuntimeError(f"Expected at least 2 dimensions for input tensor but received {x.dim()}")
    if groups <= 0:
        raise RuntimeError(f"Expected num groups to be greater than 0, got {groups}")
    if x.shape[1] % groups:
        raise RuntimeError(
            "Expected number of channels in input to be divisible by num_groups, but got input of shape "
            f"{list(x.shape)} and num_groups={groups}"
        )
    for label, param in (("weight", weight), ("bias", bias)):
        if param is not None and (param.dim() != 1 or param.shape[0] != x.shape[1]):
            raise RuntimeError(
                f"Expected {label} to be a vector of size equal to the number of channels in input, but got {label} "
                f"of shape {list(param.shape)} and input of shape {list(x.shape)}"
            )


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """LayerNorm over each of ``num_groups`` groups of channels, as ``torch.nn.functional.group_norm``.

    input [batch, channels, ...], weight and bias [channels]. Wu & He 2018 (arXiv 1803.08494). Raises RuntimeError.
    """
    _check_group_norm(input, num_groups, weight, bias)
    batch, channels = input.shape[:2]
    positions = prod(input.shape[2:])
    each = channels // num_groups
    if positions == 0 or each == 0:
        return torch.nn.functional.group_norm(input, num_groups, weight, bias, eps)
    x = input.reshape(batch, num_groups, each * positions)
    weight = None if weight is None else weight.view(num_groups, each)
    bias = None if bias is None else bias.view(num_groups, each)
    y: Tensor = norm(x, weight, bias, kind="layer", eps=eps, positions=positions)
    return y.view(input.shape)
