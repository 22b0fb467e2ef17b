"""ONNX Runtime's operators, as exporters emit them: everything in f32, the sum unrounded, one rounding."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from onnx_models import direct, run
from onnx_oracle import DTYPES, affine, assert_close, draw, fractions, rounded, standardise

MICROSOFT = "com.microsoft"
EPS = Fraction(float(np.float32(1e-6)))


def check(got: np.ndarray, want: list[Fraction]) -> None:
    if got.dtype in (DTYPES["f16"], DTYPES["bf16"]):
        assert fractions(got) == [rounded(w, got.dtype) for w in want]
    else:
        assert_close(got, want, 0.51 if got.dtype == np.float32 else 1.0, 1e-14)


@pytest.mark.parametrize("domain", ["", MICROSOFT])
@pytest.mark.parametrize(("dtype", "scale_dtype"), [(d, d) for d in DTYPES] + [("f16", "f32"), ("f32", "f16")])
def test_simplified_layer_normalization(dtype: str, scale_dtype: str, domain: str) -> None:
    x, scale = draw((2, 3, 8), dtype, 1), draw((8,), scale_dtype, 2)
    model = direct("SimplifiedLayerNormalization", [x, scale], 2, domain=domain, epsilon=1e-6)
    y, inverse = run(model, [x, scale])
    want, inverses = [], []
    for row in x.reshape(-1, 8):
        h, _, inv = standardise(fractions(row), "rms", EPS)
        want += affine(h, fractions(scale), None)
        inverses.append(inv)
    assert y.dtype == DTYPES[scale_dtype] and inverse.shape == (2, 3, 1) and inverse.dtype == np.float32
    check(y, want)
    check(inverse, inverses)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("skip_shape", [(2, 3, 8), (1, 3, 8), (3, 8)])
@pytest.mark.parametrize("op", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_skip(dtype: str, op: str, skip_shape: tuple[int, ...], has_bias: bool) -> None:
    x, skip, gamma = draw((2, 3, 8), dtype, 3), draw(skip_shape, dtype, 4), draw((8,), dtype, 5)
    layer = op == "SkipLayerNormalization"
    beta = draw((8,), dtype, 6) if layer else None
    bias = draw((8,), dtype, 7) if has_bias else None
    arrays = [x, skip, gamma, *([beta] if layer else []), bias]
    y, mean, inverse, total = run(direct(op, arrays, 4, domain=MICROSOFT, epsilon=1e-6), arrays)
    added = fractions(x), fractions(np.broadcast_to(skip, x.shape))
    extra = fractions(np.broadcast_to(np.zeros(8) if bias is None else bias, x.shape))
    sums = [a + b + c for a, b, c in zip(*added, extra, strict=True)]
    want: list[Fraction] = []
    for i in range(0, len(sums), 8):
        h, _, _ = standardise(sums[i : i + 8], "layer" if layer else "rms", EPS)
        want += affine(h, fractions(gamma), None if beta is None else fractions(beta))
    assert y.dtype == total.dtype == DTYPES[dtype] and mean.shape == inverse.shape == (2, 3, 1)
    check(y, want)
    check(total, sums)


def test_the_sum_is_not_rounded_before_the_norm() -> None:
    """2048 + 1 is no f16; rounded first, the row would be constant and the LayerNorm 0."""
    x = np.full((1, 4), 2048, np.float16)
    skip = np.array([[1, -0.5, 1, -0.5]], np.float16)
    gamma = np.ones(4, np.float16)
    (y,) = run(direct("SkipLayerNormalization", [x, skip, gamma], domain=MICROSOFT), [x, skip, gamma])
    h = [float(rounded(v, DTYPES["f16"])) for v in (Fraction(1), Fraction(-1))]
    assert y.tolist() == [[h[0], h[1], h[0], h[1]]]
