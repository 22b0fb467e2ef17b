"""Rows that are split over several owners: moments of each part, their merger, and the norm from merged statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsFloat

import numpy as np
import numpy.typing as npt

from . import _core
from ._types import Array, EpsMode, Kind, MomentOptions, Moments, NormOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack


def moments(x: Array, *, kind: Kind = "rms", **options: Unpack[MomentOptions]) -> Moments:
    """Count, mean and second moment over the last axis of x, one part of each row, in float64.

    moment2 is the sum of x^2, or for kind "layer" of (x - mean)^2; mean is None for the other kinds. Both have x's
    shape without the last axis (and an axis of groups in its place with ``group``). ``partial`` counts within the part.
    """
    return Moments(*_core.moments(x, kind=kind, **options))


def merge_moments(a: Moments, b: Moments) -> Moments:
    """The moments of two parts together (Chan, Golub & LeVeque 1979). Everybody has to merge in the same order.

    Raises:
        ValueError: their shapes differ.
        TypeError: only one of them has a mean.
    """
    return Moments(*_core.merge_moments(a[0], a[1], a[2], b[0], b[1], b[2]))


def rstd_from_moments(
    m: Moments,
    *,
    kind: Kind = "rms",
    eps: SupportsFloat | None = 1e-6,
    eps_mode: EpsMode = "inside",
    divisor: SupportsFloat | None = None,
) -> npt.NDArray[np.float64]:
    """1/sqrt(moment2/count + eps) as :func:`truenorm.norm` computes it, in float64."""
    return _core.rstd_from_moments(m[2], m[0], kind=kind, eps=eps, eps_mode=eps_mode, divisor=divisor)


def norm_apply(
    x: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    rstd: Array,
    mean: Array | None = None,
    kind: Kind = "rms",
    **options: Unpack[NormOptions],
) -> Any:
    """:func:`truenorm.norm` of one part with given statistics: weight cast?((x - mean) rstd) + bias.

    rstd and mean (kind "layer" only) are float32 or float64, of x's shape without the last axis. With float64
    statistics of whole float32 rows without a gate before the norm, or of float16 or bfloat16 rows with a float32
    result, kinds "rms" and "l2" give the bits of :func:`truenorm.norm`.
    """
    return _core.apply(x, weight, bias, rstd=rstd, mean=mean, kind=kind, **options)
