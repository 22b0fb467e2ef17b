"""Gradients for NumPy and DLPack arrays."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, SupportsFloat

from . import _core
from ._forward import channel_parameter, group_shape
from ._types import Array, BackwardOptions, Gradient, Gradients, GroupOptions, Kind

if TYPE_CHECKING:
    from typing_extensions import Unpack


def norm_backward(
    dy: Array,
    x: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    kind: Kind = "rms",
    eps: SupportsFloat | None = 1e-6,
    need: Collection[Gradient] | None = None,
    **options: Unpack[BackwardOptions],
) -> Gradients:
    """The gradients of :func:`truenorm.norm`, called with the same operands and options.

    With G the gradient that reaches h, and <.> the mean over the counted elements::

        dx = rstd (G - <G> [layer only] - h <G h>) + dsum        dresidual = dx
        dweight = sum of dy h,  dbias = sum of dy over the axes along which weight and bias were broadcast

    A rounding has the gradient of the identity. Sums over rows are float64, in an order that follows from the shapes
    alone: the same bits for any strides and threads. Axes that all sums treat alike are one; where strides do not allow
    that, an operand is copied.

    Args:
        dy: gradient of y; broadcasts against x.
        need: names of the gradients wanted; None: of all operands that are there. "dweight" and "dbias" may be asked
            for without weight and bias; they are then [n] (or shaped like weight) in x's dtype.
        dsum: gradient of the sum result, added to dx.
        mean, rstd: the statistics that ``norm(..., stats=...)`` returned; otherwise they are computed again.
        out: arrays by name of gradient, to be written; dx, dresidual and dgate may be dy, dsum, x, residual or gate
            itself.
        accumulate: add to those of dweight, dbias, dmod_scale and dmod_shift that are in ``out``.
        dtypes: dtypes by name of gradient; else each has its operand's.

    Returns:
        Named tuple of dx, dresidual, dgate (of x's shape, also for a residual or gate that was broadcast), dweight,
        dbias, dmod_scale and dmod_shift (of their operands' shapes); None for those not asked for.

    Raises:
        TypeError, ValueError: as :func:`truenorm.norm`.
    """
    return Gradients(*_core.backward(dy, x, weight, bias, kind=kind, eps=eps, need=need, **options))


def rms_norm_backward(
    dy: Array,
    x: Array,
    weight: Array | None = None,
    *,
    eps: SupportsFloat | None = 1e-6,
    need: Collection[Gradient] | None = None,
    **options: Unpack[BackwardOptions],
) -> Gradients:
    """:func:`norm_backward` of :func:`truenorm.rms_norm`: dx and dweight."""
    return Gradients(*_core.backward(dy, x, weight, None, eps=eps, need=need, **options))


def layer_norm_backward(
    dy: Array,
    x: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    eps: SupportsFloat | None = 1e-5,
    need: Collection[Gradient] | None = None,
    **options: Unpack[BackwardOptions],
) -> Gradients:
    """:func:`norm_backward` of :func:`truenorm.layer_norm`: dx, dweight and dbias."""
    return Gradients(*_core.backward(dy, x, weight, bias, kind="layer", eps=eps, need=need, **options))


def group_norm_backward(
    dy: Array,
    x: Array,
    num_groups: int,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    eps: SupportsFloat | None = 1e-5,
    need: Collection[Gradient] | None = None,
    **options: Unpack[GroupOptions],
) -> Gradients:
    """The gradients of :func:`truenorm.group_norm`: dx [N, C, ...], dweight and dbias [C]."""
    values, slope = _core.asarray(x, "x"), _core.asarray(dy, "dy")
    if slope.shape != values.shape:
        raise ValueError(f"dy: shape {slope.shape} is not x's {values.shape}")
    shape, positions = group_shape(values, num_groups)
    wide, shift = (channel_parameter(p, name, shape, positions) for p, name in ((weight, "weight"), (bias, "bias")))
    if positions:
        options = {**options, "positions": positions}  # type: ignore[typeddict-unknown-key]
    grads = Gradients(
        *_core.backward(
            slope.reshape(shape), values.reshape(shape), wide, shift, kind="layer", eps=eps, need=need, **options
        )
    )
    return grads._replace(
        dx=None if grads.dx is None else grads.dx.reshape(values.shape),
        dweight=None if grads.dweight is None else grads.dweight.reshape(-1),
        dbias=None if grads.dbias is None else grads.dbias.reshape(-1),
    )
