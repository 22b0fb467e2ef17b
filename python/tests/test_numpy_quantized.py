"""int8 and fp8 results: rounded once from the exact y, with the scale of a row or a given one."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy_reference import BF16, F32, F64, FLOATS, LD, draw, reference, same_bits

import truenorm

MOST = {"int8": 127.0, "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}


def quantized(y: Any, scale: Any, dtype: str) -> tuple[Any, Any]:
    """The two values that y / scale may round to: from a little below, and a little above."""
    values = (y / np.asarray(scale).astype(LD)).astype(F64)
    around = []
    for factor in (1 - 2.0**-40, 1 + 2.0**-40):
        near = values * factor
        if dtype == "int8":
            around.append(np.clip(np.rint(near), -128, 127))
        else:
            near = np.clip(near, -448, 448) if dtype == "float8_e4m3fn" else near
            # ml_dtypes rounds float64 to fp8 through float32; keep clear of that.
            around.append(round_fp8(near, dtype))
    return around[0], around[1]


def round_fp8(values: Any, dtype: str) -> Any:
    bits, least = {"float8_e4m3fn": (3, -6), "float8_e5m2": (2, -14)}[dtype]
    unit = np.ldexp(1.0, np.maximum(np.frexp(values)[1] - 1, least) - bits)
    return np.rint(values / unit) * unit


@pytest.mark.parametrize("dtype", MOST)
@pytest.mark.parametrize("x", FLOATS, ids=str)
@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_scale_of_a_row(dtype: Any, x: Any, kind: Any) -> None:
    a, w = draw((3, 5, 200), x), draw(200, x, 1)
    q, scale = truenorm.norm_quantized(a, w, kind=kind, dtype=dtype, scale_dtype=F64)
    want = reference(a, w, kind=kind).y
    assert q.dtype == np.dtype(dtype) and q.shape == a.shape and scale.shape == (3, 5)
    np.testing.assert_allclose(scale, (np.abs(want).max(-1) / MOST[dtype]).astype(F64), rtol=1e-12)
    low, high = quantized(want, scale[..., None], dtype)
    got = q.astype(F64)
    assert ((got == low) | (got == high)).all()
    assert np.abs(got).max() == MOST[dtype]


@pytest.mark.parametrize("dtype", MOST)
@pytest.mark.parametrize(
    "scale",
    [0.05, np.float64(0.05), draw(5, F32, 3) ** 2 + 0.01, np.full((3, 5, 1), 0.25)],
    ids=lambda s: str(np.shape(s)),
)
def test_given_scale(dtype: Any, scale: Any) -> None:
    a, w = draw((3, 5, 64)), draw(64, BF16, 1)
    wide = np.asarray(scale)
    wide = wide if wide.ndim == 3 else wide[..., None]
    if isinstance(scale, np.float64):
        scale = float(scale)
    q, same = truenorm.rms_norm_quantized(a, w, dtype=dtype, scale=scale)
    assert same is scale
    low, high = quantized(reference(a, w).y, wide, dtype)
    got = q.astype(F64)
    assert ((got == low) | (got == high)).all()


def test_saturation_and_specials() -> None:
    x = np.array([[1, 1, 1, 1], [0, 0, 0, 0], [np.nan, 1, 1, 1]], F32)
    q, scale = truenorm.rms_norm_quantized(x, eps=0.0)
    assert scale[1] == 1 and (q[1] == 0).all() and (q[2] == 0).all() and (q[0] == 127).all()
    e4m3, _ = truenorm.rms_norm_quantized(x, dtype="float8_e4m3fn", scale=1e-6)
    assert (e4m3[0].astype(F32) == 448).all() and np.isnan(e4m3[2].astype(F32)).all()
    e5m2, _ = truenorm.rms_norm_quantized(x, dtype=ml_dtypes.float8_e5m2, scale=1e-6)
    assert np.isinf(e5m2[0].astype(F32)).all()
    i8, _ = truenorm.rms_norm_quantized(-x, scale=1e-3)
    assert (i8[0] == -128).all()


def test_with_residual_and_out() -> None:
    x, r = draw((4, 32)), draw((4, 32), seed=1)
    out, total = np.empty((4, 64), np.int8)[:, ::2], np.empty((4, 32), F32)
    q, scale, s = truenorm._core.quantized(x, residual=r, out=out, sum_out=total)
    assert q is out and s is total
    assert same_bits(total, x + r)
    again, scale_again = truenorm.rms_norm_quantized(x + r)
    assert same_bits(q, again) and same_bits(scale, scale_again)
    layer, _ = truenorm.layer_norm_quantized(x, np.ones(32, F32), np.ones(32, F32))
    assert same_bits(layer, truenorm.norm_quantized(x, np.ones(32, F32), np.ones(32, F32), kind="layer", eps=1e-5)[0])
