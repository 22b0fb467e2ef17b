"""Forward functions for NumPy and DLPack arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsFloat

import numpy as np

from . import _core
from ._types import (
    Activation,
    Array,
    Cast,
    DType,
    EpsMode,
    GateOptions,
    GateOrder,
    Grade,
    GroupOptions,
    Kind,
    NDArray,
    Options,
    QuantizedOptions,
    Sum,
    SumOptions,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack


def norm(
    x: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    kind: Kind = "rms",
    eps: SupportsFloat | None = 1e-6,
    eps_mode: EpsMode = "inside",
    cast: Cast = "once",
    grade: Grade = "exact",
    weight_offset: SupportsFloat = 0.0,
    divisor: SupportsFloat | None = None,
    group: int | None = None,
    partial: int | None = None,
    positions: int | None = None,
    residual: Array | None = None,
    sum: Sum = "rounded",
    sum_dtype: DType = None,
    sum_out: Array | None = None,
    gate: Array | None = None,
    gate_order: GateOrder = "before",
    act: Activation = "silu",
    mod_scale: Array | None = None,
    mod_shift: Array | None = None,
    round_rstd: bool = False,
    round_offset: bool = False,
    round_product: bool = False,
    out_dtype: DType = None,
    out: Array | None = None,
    stats: DType = None,
    threads: int | None = None,
) -> Any:
    """Normalise over the last axis of x: every norm of truenorm.h in one function.

    In exact arithmetic, with rounding only where a cast is named::

        s = x (+ residual);  s = s act(gate) if gate_order is "before"
        m = mean(s) for kind "layer", else 0
        v = mean((s - m)^2), or the sum for kind "l2"
        h = (s - m) / sqrt(v + eps)
        y = ((weight + weight_offset) cast?(h) + bias) (1 + mod_scale) + mod_shift
        y = y act(gate) if gate_order is "after"

    Arrays are float64, float32, float16 or ml_dtypes' bfloat16, each its own, NumPy's or anything's with ``__dlpack__``
    in CPU memory; any strides. The result is a NumPy array.

    Args:
        x: [..., n].
        weight, bias: [n], or with leading axes that broadcast against x's, such as [heads, n]. With ``positions`` the
            last axis is n/positions long.
        eps: None takes the machine epsilon of float32 (of float64 for a float64 x), as torch does. May be negative: NaN
            where v + eps is.
        eps_mode: "inside" as above; "outside": (s - m)/(sqrt(v) + eps); "clamp": (s - m)/max(sqrt(v), eps).
        cast: "once" rounds y only; "before_scale" rounds h to x's dtype first, as Llama does; "t5" rounds h to the
            weight's dtype if that is 16-bit.
        grade: "exact" (float32 RMSNorm within 0.5001 ulp) or "fast" (2.5 ulp).
        divisor: replaces the number of elements in the means.
        group: statistics over each run of that many elements.
        partial: statistics from the first elements only (of each group).
        positions: each element of weight and bias serves that many consecutive elements of the row.
        residual: added to x. The result is then the tuple (y, sum).
        sum: what the norm sees of x + residual: "rounded" to the dtype of the sum, or "exact".
        sum_dtype, sum_out: the dtype of the sum (x's), or the array that it is written to.
        gate: broadcasts against x; act is "silu" or "sigmoid".
        mod_scale, mod_shift: adaptive modulation, [..., n], broadcast against x.
        round_rstd, round_offset, round_product: round 1/sqrt(v + eps) to x's dtype, weight + weight_offset to the
            weight's, weight h to y's.
        out_dtype: None: x's for "once", that of x and weight promoted for "before_scale", for "t5" the weight's if that
            is 16-bit and otherwise float32 (float64 for a float64 x).
        out: array of x's shape for y; may be x, residual or gate itself. It is then also what is returned.
        stats: "float32" or "float64": mean (None but for "layer") and rstd, of x's shape without the last axis (with an
            axis of groups in its place with ``group``), follow in the result tuple.
        threads: at most that many; None: see :func:`set_num_threads`. It never changes the result.

    Raises:
        TypeError: an operand is no array, or has a dtype that is not supported; a wrong keyword.
        ValueError: shapes do not fit, an option is out of range, arrays overlap.
    """
    return _core.forward(
        x,
        weight,
        bias,
        kind=kind,
        eps=eps,
        eps_mode=eps_mode,
        cast=cast,
        grade=grade,
        weight_offset=weight_offset,
        divisor=divisor,
        group=group,
        partial=partial,
        positions=positions,
        residual=residual,
        sum=sum,
        sum_dtype=sum_dtype,
        sum_out=sum_out,
        gate=gate,
        gate_order=gate_order,
        act=act,
        mod_scale=mod_scale,
        mod_shift=mod_shift,
        round_rstd=round_rstd,
        round_offset=round_offset,
        round_product=round_product,
        out_dtype=out_dtype,
        out=out,
        stats=stats,
        threads=threads,
    )


def rms_norm(
    x: Array, weight: Array | None = None, *, eps: SupportsFloat | None = 1e-6, **options: Unpack[Options]
) -> NDArray:
    """weight x / sqrt(mean(x^2) + eps) over the last axis (Zhang & Sennrich 2019, arXiv 1910.07467).

    Shapes, dtypes, options and errors as of :func:`norm`.
    """
    y: NDArray = _core.forward(x, weight, None, eps=eps, **options)
    return y


def layer_norm(
    x: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    eps: SupportsFloat | None = 1e-5,
    **options: Unpack[Options],
) -> NDArray:
    """weight (x - mean(x)) / sqrt(var(x) + eps) + bias over the last axis (Ba et al. 2016, arXiv 1607.06450).

    var divides by n. Shapes, dtypes, options and errors as of :func:`norm`.
    """
    y: NDArray = _core.forward(x, weight, bias, kind="layer", eps=eps, **options)
    return y


def l2_norm(
    x: Array, weight: Array | None = None, *, eps: SupportsFloat | None = 1e-6, **options: Unpack[Options]
) -> NDArray:
    """weight x / sqrt(sum(x^2) + eps) over the last axis.

    With ``eps_mode="clamp", eps=1e-12`` this is torch.nn.functional.normalize. Otherwise as :func:`norm`.
    """
    y: NDArray = _core.forward(x, weight, None, kind="l2", eps=eps, **options)
    return y


def add_rms_norm(
    x: Array,
    residual: Array,
    weight: Array | None = None,
    *,
    eps: SupportsFloat | None = 1e-6,
    **options: Unpack[SumOptions],
) -> tuple[NDArray, NDArray]:
    """(rms_norm(s), s) of the sum s = x + residual, in one pass.

    s is rounded to x's dtype (``sum_dtype``) before the norm sees it, unless ``sum="exact"``. ``sum_out=residual``
    updates a residual stream in place. Otherwise as :func:`norm`.
    """
    results: tuple[NDArray, NDArray] = _core.forward(x, weight, None, residual=residual, eps=eps, **options)
    return results


def gated_rms_norm(
    x: Array,
    gate: Array,
    weight: Array | None = None,
    *,
    eps: SupportsFloat | None = 1e-6,
    **options: Unpack[GateOptions],
) -> NDArray:
    """rms_norm(x act(gate)), or rms_norm(x) act(gate) with ``gate_order="after"``; act is silu or sigmoid.

    The first is Mamba-2's (its groups: ``group=``), the second that of gated delta nets. Otherwise as :func:`norm`.
    """
    y: NDArray = _core.forward(x, weight, None, gate=gate, eps=eps, **options)
    return y


def group_norm(
    x: Array,
    num_groups: int,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    eps: SupportsFloat | None = 1e-5,
    out: Array | None = None,
    **options: Unpack[GroupOptions],
) -> NDArray:
    """GroupNorm over [N, C, ...]: each of num_groups runs of channels is normalised with its positions (Wu & He 2018,
    arXiv 1803.08494); weight and bias are [C].

    An x whose channels and positions do not lie behind one another (channels last) is copied, and such an out is
    written through a temporary array. ``num_groups=C`` is instance norm. Dtypes and options as of :func:`norm`.

    Raises:
        ValueError: num_groups does not divide C, and as :func:`norm`.
    """
    values = _core.asarray(x, "x")
    shape, positions = group_shape(values, num_groups)
    rows = values.reshape(shape)
    wide, shift = (channel_parameter(p, name, shape, positions) for p, name in ((weight, "weight"), (bias, "bias")))
    if positions:
        options = {**options, "positions": positions}  # type: ignore[typeddict-unknown-key]
    if out is None:
        y: NDArray = _core.forward(rows, wide, shift, kind="layer", eps=eps, **options)
        return y.reshape(values.shape)
    target = _core.asarray(out, "out", True)
    if target.shape != values.shape:
        raise ValueError(f"out: shape {target.shape} is not x's {values.shape}")
    flat = target.reshape(shape)
    y = _core.forward(rows, wide, shift, kind="layer", eps=eps, out=flat, **options)
    if not np.may_share_memory(flat, target):
        target[...] = flat.reshape(target.shape)
    return out  # type: ignore[return-value]


def group_shape(x: NDArray, num_groups: int) -> tuple[tuple[int, int, int], int]:
    """The rows of a GroupNorm, (N, groups, elements of a group), and how many positions a channel has."""
    if x.ndim < 2:
        raise ValueError(f"x: shape {x.shape} has no channels; [N, C, ...] is expected")
    if num_groups < 1 or x.shape[1] % num_groups:
        raise ValueError(f"num_groups: {num_groups} does not divide {x.shape[1]} channels")
    positions = int(np.prod(x.shape[2:], dtype=np.int64))
    return (x.shape[0], num_groups, x.shape[1] // num_groups * positions), positions


def channel_parameter(
    parameter: Array | None, name: str, shape: tuple[int, int, int], positions: int
) -> NDArray | None:
    """A [C] weight or bias as [groups, C/groups]."""
    if parameter is None:
        return None
    values = _core.asarray(parameter, name)
    channels = shape[1] * (shape[2] // positions if positions else 0)
    if values.ndim != 1 or (positions and values.shape[0] != channels):
        raise ValueError(f"{name}: shape {values.shape} is not ({channels},)")
    return values.reshape(shape[1], -1) if positions else None


def norm_quantized(
    x: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    kind: Kind = "rms",
    dtype: DType = None,
    scale: Array | float | None = None,
    eps: SupportsFloat | None = 1e-6,
    **options: Unpack[QuantizedOptions],
) -> tuple[NDArray, Any]:
    """(q, scale) with q = y / scale in int8, float8_e4m3fn or float8_e5m2, rounded once from :func:`norm`'s exact y.

    ``dtype`` None is out's, or int8. Without ``scale`` each row gets its own: max|y| / 127, 448 or 57344, and 1 for a
    row of zeros; the array of scales has x's shape without the last axis and ``scale_dtype`` ("float32"). A given
    scale, one number or an array that broadcasts against the rows ([...] or [..., 1]), comes back as it is. int8
    and e4m3 saturate, e5m2 goes to inf; NaN becomes the fp8 NaN or int8 0.

    Raises:
        TypeError, ValueError: as :func:`norm`.
    """
    results: tuple[NDArray, Any] = _core.quantized(
        x, weight, bias, kind=kind, dtype=dtype, scale=scale, eps=eps, **options
    )
    return results


def rms_norm_quantized(
    x: Array,
    weight: Array | None = None,
    *,
    dtype: DType = None,
    scale: Array | float | None = None,
    eps: SupportsFloat | None = 1e-6,
    **options: Unpack[QuantizedOptions],
) -> tuple[NDArray, Any]:
    """:func:`norm_quantized` of kind "rms"."""
    return norm_quantized(x, weight, None, kind="rms", dtype=dtype, scale=scale, eps=eps, **options)


def layer_norm_quantized(
    x: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    dtype: DType = None,
    scale: Array | float | None = None,
    eps: SupportsFloat | None = 1e-5,
    **options: Unpack[QuantizedOptions],
) -> tuple[NDArray, Any]:
    """:func:`norm_quantized` of kind "layer"."""
    return norm_quantized(x, weight, bias, kind="layer", dtype=dtype, scale=scale, eps=eps, **options)
