"""Distances in ulp, and the norms' exact values to measure them from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Dtype = np.dtype[Any]

DTYPES: dict[str, Dtype] = {
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype(np.float16),
}
# Fraction bits and least normal exponent.
FORMATS = {DTYPES["f64"]: (52, -1022), DTYPES["f32"]: (23, -126), DTYPES["bf16"]: (7, -126), DTYPES["f16"]: (10, -14)}
LARGEST = {d: float(ml_dtypes.finfo(d).max) for d in FORMATS}  # type: ignore[no-untyped-call]
# Upper ends of the buckets of a histogram.
EDGES = (0, 1, 2, 4, 8, 16, 64, 1024)
LABELS = ("0", "1", "2", "3-4", "5-8", "9-16", "17-64", "65-1024", "more")
ERROR_EDGES = (0.5, 0.501, 1.0, 2.0, 4.0, 16.0, 64.0, 1024.0)
ERROR_LABELS = ("≤0.5", "≤0.501", "≤1", "≤2", "≤4", "≤16", "≤64", "≤1024", "more")


def name_of(dtype: Dtype) -> str:
    return next(name for name, d in DTYPES.items() if d == dtype)


def ordered(a: Array) -> Array:
    """Floats as integers in the same order, neighbours 1 apart, both zeros at 0."""
    bits = a.view(np.dtype(f"i{a.dtype.itemsize}")).astype(np.int64)
    least = np.int64(-(1 << (8 * a.dtype.itemsize - 1)))
    return np.where(bits < 0, least - bits, bits)


def distance(a: Array, b: Array) -> Array:
    """Representable values between a and b (same dtype), as f64; two NaNs are 0 apart, a NaN and a number inf."""
    left, right = ordered(a).astype(np.float64), ordered(b).astype(np.float64)
    # f64's integers do not fit f64: near ones are subtracted as integers.
    if a.dtype.itemsize == 8:
        near = np.abs(left - right) < 2.0**52
        exact = (ordered(a) - ordered(b)).astype(np.float64)
        result = np.where(near, np.abs(exact), np.abs(left - right))
    else:
        result = np.abs(left - right)
    nan_a, nan_b = np.isnan(a), np.isnan(b)
    return np.where(nan_a & nan_b, 0.0, np.where(nan_a | nan_b, np.inf, result))


def error(y: Array, want: Array) -> Array:
    """|y - want| in ulp of y's dtype at want; want is long double."""
    bits, least = FORMATS[y.dtype]
    wide = y.astype(np.float64).astype(np.longdouble)
    with np.errstate(all="ignore"):
        exponent = np.where((want == 0) | ~np.isfinite(want), least, np.frexp(want)[1] - 1)
        unit = np.ldexp(np.longdouble(1), (np.maximum(exponent, least) - bits).astype(np.int32))
        result = np.abs(wide - want) / unit
    # Beyond the largest number inf is right (just beyond, it may be; the formula alone does not say).
    largest = np.longdouble(LARGEST[y.dtype])
    same = (wide == want) | (np.isnan(wide) & np.isnan(want)) | (np.isinf(wide) & (np.abs(want) > largest))
    result = np.where(same, 0, np.where(np.isfinite(result), result, np.inf))
    return result.astype(np.float64)


def exact_norm(x: Array, weight: Array | None, bias: Array | None, kind: str, eps: float) -> Array:
    """The formula in long double, rounded nowhere."""
    s = x.astype(np.float64).astype(np.longdouble)
    mean = s.mean(-1, keepdims=True) if kind == "layer" else np.longdouble(0)
    d = s - mean
    total = (d * d).sum(-1, keepdims=True)
    root = np.sqrt((total if kind == "l2" else total / x.shape[-1]) + np.longdouble(eps))
    with np.errstate(all="ignore"):
        y = np.where(root == 0, np.longdouble(0), d / root)
    if weight is not None:
        y = y * weight.astype(np.float64).astype(np.longdouble)
    return y if bias is None else y + bias.astype(np.float64).astype(np.longdouble)


@dataclass
class Histogram:
    """Counts by bucket, and what a sum over chunks can keep."""

    edges: Sequence[float]
    counts: list[int] = field(default_factory=list)
    size: int = 0
    total: float = 0.0
    largest: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.edges) + 1)

    def add(self, values: Array) -> None:
        where = np.searchsorted(np.asarray(self.edges, dtype=np.float64), values.reshape(-1), side="left")
        for bucket, count in zip(*np.unique(where, return_counts=True), strict=True):
            self.counts[int(bucket)] += int(count)
        finite = values[np.isfinite(values)]
        self.size += values.size
        self.total += float(finite.sum())
        if values.size:
            self.largest = max(self.largest, float(values.max()))

    @property
    def mean(self) -> float:
        return self.total / self.size if self.size else 0.0

    def share(self, bucket: int) -> float:
        return self.counts[bucket] / self.size if self.size else 0.0
