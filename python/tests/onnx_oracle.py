"""The norms in exact arithmetic (fractions; roots to 300 bits), rounded only where a cast says so.

onnx.reference is not the oracle: it squares f16 in f16 and refuses a stash_type other than 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import isqrt
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Dtype = np.dtype[Any]
DTYPES: dict[str, Dtype] = {
    "f64": np.dtype("f8"),
    "f32": np.dtype("f4"),
    "f16": np.dtype("f2"),
    "bf16": np.dtype(ml_dtypes.bfloat16),
}
# Fraction bits and least normal exponent.
FORMATS = {DTYPES["f64"]: (52, -1022), DTYPES["f32"]: (23, -126), DTYPES["f16"]: (10, -14), DTYPES["bf16"]: (7, -126)}
ELEM_TYPES = {"f64": 11, "f32": 1, "f16": 10, "bf16": 16}
EXTRA = 1 << 300


def fractions(a: Array) -> list[Fraction]:
    return [Fraction(float(v)) for v in np.asarray(a, dtype=np.float64).reshape(-1)]


def ulp(value: Fraction, dtype: Dtype) -> Fraction:
    bits, least = FORMATS[dtype]
    size = abs(value)
    exponent = least
    if size:
        exponent = size.numerator.bit_length() - size.denominator.bit_length()
        exponent -= Fraction(2) ** exponent > size
    return Fraction(2) ** (max(exponent, least) - bits)


def rounded(value: Fraction, dtype: Dtype | None) -> Fraction:
    """To nearest, ties to even; no overflow in these tests."""
    if dtype is None:
        return value
    unit = ulp(value, dtype)
    return round(value / unit) * unit


def root(value: Fraction) -> Fraction:
    return Fraction(isqrt(value.numerator * value.denominator * EXTRA * EXTRA), value.denominator * EXTRA)


def standardise(row: Sequence[Fraction], kind: str, eps: Fraction) -> tuple[list[Fraction], Fraction, Fraction]:
    """h, the mean and 1/sqrt(v + eps) of one row; a zero row with eps 0 has h = 0."""
    mean = sum(row, Fraction(0)) / len(row) if kind == "layer" else Fraction(0)
    centred = [v - mean for v in row]
    total = sum((d * d for d in centred), Fraction(0))
    divisor = root((total if kind == "l2" else total / len(row)) + eps)
    inverse = 1 / divisor if divisor else Fraction(0)
    return [d * inverse for d in centred], mean, inverse


def affine(
    h: Sequence[Fraction],
    scale: Sequence[Fraction] | None,
    bias: Sequence[Fraction] | None,
    h_dtype: Dtype | None = None,
    product_dtype: Dtype | None = None,
) -> list[Fraction]:
    """h * scale + bias before the last rounding."""
    values = [rounded(v, h_dtype) for v in h]
    if scale is not None:
        values = [v * s for v, s in zip(values, scale, strict=True)]
    if bias is None:
        return values
    return [rounded(v, product_dtype) + b for v, b in zip(values, bias, strict=True)]


def assert_close(got: Array, want: Sequence[Fraction], ulps: float, slack: float = 0.0) -> None:
    """Within `ulps` of got's dtype, and slack times max(1, |want|) more (what a cancelling sum in f64 may lose)."""
    values = fractions(got)
    assert len(values) == len(want)
    for i, (g, w) in enumerate(zip(values, want, strict=True)):
        bound = Fraction(ulps) * ulp(w, got.dtype) + Fraction(slack) * max(1, abs(w))
        assert abs(g - w) <= bound, (
            f"element {i}: {float(g)!r} for {float(w)!r}, {float((g - w) / ulp(w, got.dtype))} ulp"
        )


def draw(shape: Sequence[int], dtype: str, seed: int = 0, scale: float = 1.0, shift: float = 0.0) -> Array:
    values = np.random.default_rng(seed).standard_normal(shape) * scale + shift
    return values.astype(np.float32).astype(DTYPES[dtype]) if dtype == "bf16" else values.astype(DTYPES[dtype])
