"""Norm operators against exact arithmetic: dtypes, stash types, axes, broadcasting, missing inputs and outputs."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from onnx_models import direct, expanded, run
from onnx_oracle import DTYPES, ELEM_TYPES, affine, assert_close, draw, fractions, rounded, standardise

HALF = ("f16", "bf16")
# x's dtype, stash type. The ones missing round h to two 16-bit formats of which neither holds the other.
PAIRS = [(x, s) for x in DTYPES for s in DTYPES if not (x in HALF and s in HALF and x != s)]


def narrower(a: str, b: str) -> bool:
    return DTYPES[a].itemsize < DTYPES[b].itemsize


def body(kind: str, x: Any, n: int, scale: Any, bias: Any, eps: float, stash: str, dtype: str) -> Any:
    """The function body in exact arithmetic: y before its last rounding, mean and 1/root of each row."""
    least = min((stash, dtype), key=lambda d: DTYPES[d].itemsize)
    h_dtype = DTYPES[least] if least in HALF or narrower(stash, dtype) else None
    values = [rounded(v, DTYPES[stash]) for v in fractions(x)]
    eps_seen = Fraction(float(np.float32(eps).astype(DTYPES[stash])))
    scales = None if scale is None else fractions(np.broadcast_to(scale, x.shape))
    biases = None if bias is None else fractions(np.broadcast_to(bias, x.shape))
    y: list[Fraction] = []
    means, inverses = [], []
    for i in range(0, len(values), n):
        h, mean, inverse = standardise(values[i : i + n], kind, eps_seen)
        part = [None if v is None else v[i : i + n] for v in (scales, biases)]
        y += affine(h, part[0], part[1], h_dtype, DTYPES[dtype] if dtype in HALF else None)
        means.append(mean)
        inverses.append(inverse)
    return y, means, inverses


def check(got: Any, want: Any, stage_dtype: str = "f32") -> None:
    """16-bit results bit for bit; f32 within 0.51 ulp and what f64 may lose; f64 within 8 ulp."""
    if got.dtype in (DTYPES["f16"], DTYPES["bf16"]):
        assert fractions(got) == [rounded(w, got.dtype) for w in want]
    else:
        assert_close(got, want, 0.51 if got.dtype == np.float32 else 1.0, 1e-14)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
@pytest.mark.parametrize(("dtype", "stash"), PAIRS)
def test_layer_normalization(dtype: str, stash: str, axis: int) -> None:
    x = draw((2, 3, 10), dtype, 1, 3.0, 0.5)
    scale, bias = (draw(x.shape[axis:], dtype, seed) for seed in (2, 3))
    attrs = {"axis": axis, "stash_type": ELEM_TYPES[stash], "epsilon": 1e-3}
    arrays = [x, scale, bias]
    y, mean, inverse = run(direct("LayerNormalization", arrays, 3, **attrs), arrays)
    n = int(np.prod(x.shape[axis:]))
    want, means, inverses = body("layer", x, n, scale, bias, 1e-3, stash, dtype)
    assert y.dtype == DTYPES[dtype] and mean.dtype == inverse.dtype == DTYPES[stash]
    assert mean.shape == inverse.shape == x.shape[: axis % 3] + (1,) * (3 - axis % 3)
    check(y, want)
    check(mean, means)
    check(inverse, inverses)
    # The function bodies, for both opsets, are recognised and give the same bits.
    models = expanded("LayerNormalization", arrays, 3, **attrs)
    assert len(models) == (2 if stash in ("f32", "bf16") else 0)
    for model in models:
        for a, b in zip(run(model, arrays), (y, mean, inverse), strict=True):
            assert a.dtype == b.dtype and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize(("dtype", "stash"), PAIRS)
def test_rms_normalization(dtype: str, stash: str, axis: int) -> None:
    x = draw((2, 3, 10), dtype, 4, 3.0)
    scale = draw(x.shape[axis:], dtype, 5)
    attrs = {"axis": axis, "stash_type": ELEM_TYPES[stash], "epsilon": 1e-3}
    (y,) = run(direct("RMSNormalization", [x, scale], **attrs), [x, scale])
    want, _, _ = body("rms", x, int(np.prod(x.shape[axis:])), scale, None, 1e-3, stash, dtype)
    assert y.dtype == DTYPES[dtype]
    check(y, want)
    (model,) = expanded("RMSNormalization", [x, scale], **attrs)
    assert run(model, [x, scale])[0].tobytes() == y.tobytes()


@pytest.mark.parametrize("scale_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_normalization_with_a_scale_of_its_own_dtype(dtype: str, scale_dtype: str) -> None:
    """Y has scale's dtype; h is cast to x's dtype before the product."""
    x, scale = draw((4, 12), dtype, 6), draw((12,), scale_dtype, 7)
    stash = "f64" if dtype == "f64" else "f32"
    (y,) = run(direct("RMSNormalization", [x, scale], stash_type=ELEM_TYPES[stash]), [x, scale])
    want, _, _ = body("rms", x, 12, scale, None, 1e-5, stash, dtype)
    assert y.dtype == DTYPES[scale_dtype]
    check(y, want)


def test_f16_squares_do_not_overflow() -> None:
    """onnx.reference squares in f16: 300^2 is inf there, and the result 0."""
    x = np.array([[300, -300, 300, -300]], np.float16)
    scale = np.ones(4, np.float16)
    for stash in (1, 10):
        (y,) = run(direct("RMSNormalization", [x, scale], stash_type=stash), [x, scale])
        assert y.tolist() == [[1, -1, 1, -1]]


@pytest.mark.parametrize(("dtype", "stash"), [("f32", "f16"), ("f32", "bf16"), ("f16", "f16"), ("f32", "f32")])
def test_epsilon_is_rounded_to_stash_type(dtype: str, stash: str) -> None:
    x, scale = draw((16, 8), dtype, 24, 0.1), np.ones(8, DTYPES[dtype])
    attrs = {"stash_type": ELEM_TYPES[stash], "epsilon": 0.3}
    (y,) = run(direct("RMSNormalization", [x, scale], **attrs), [x, scale])
    check(y, body("rms", x, 8, scale, None, 0.3, stash, dtype)[0])


@pytest.mark.parametrize("shape", [(1,), (5,), (4, 1), (1, 5), (3, 1, 1), (3, 4, 5), (2, 1, 1, 1), (2, 3, 4, 5), ()])
@pytest.mark.parametrize("op", ["LayerNormalization", "RMSNormalization"])
def test_scale_and_bias_are_broadcast(op: str, shape: tuple[int, ...]) -> None:
    x, scale, bias = draw((2, 3, 4, 5), "f32", 8), draw(shape, "f32", 9), draw(shape, "f32", 10)
    arrays = [x, scale, bias] if op.startswith("Layer") else [x, scale]
    full = [x, *(np.ascontiguousarray(np.broadcast_to(a, x.shape)) for a in arrays[1:])]
    (y,) = run(direct(op, arrays, axis=2), arrays)
    kind = "layer" if op.startswith("Layer") else "rms"
    want, _, _ = body(kind, x, 20, full[1], full[2] if len(full) > 2 else None, 1e-5, "f32", "f32")
    check(y, want)
    assert y.tobytes() == run(direct(op, full, axis=2), full)[0].tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_normalization_without_bias(dtype: str) -> None:
    x, scale = draw((5, 7), dtype, 11), draw((7,), dtype, 12)
    stash = "f64" if dtype == "f64" else "f32"
    (y,) = run(direct("LayerNormalization", [x, scale, None], stash_type=ELEM_TYPES[stash]), [x, scale])
    want, _, _ = body("layer", x, 7, scale, None, 1e-5, stash, dtype)
    check(y, want)
    for model in expanded("LayerNormalization", [x, scale], stash_type=ELEM_TYPES[stash]):
        assert run(model, [x, scale])[0].tobytes() == y.tobytes()


def test_outputs_may_be_left_out() -> None:
    x, scale = draw((3, 8), "f32"), np.ones(8, np.float32)
    model = direct("LayerNormalization", [x, scale], 3)
    model.graph.node[0].output[1] = ""
    del model.graph.output[1]
    y, inverse = run(model, [x, scale])
    assert y.shape == (3, 8) and inverse.shape == (3, 1)
    np.testing.assert_allclose(inverse[:, 0], 1 / np.sqrt(x.var(-1) + 1e-5), rtol=1e-5)


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
@pytest.mark.parametrize(("dtype", "stash"), PAIRS)
def test_group_normalization(dtype: str, stash: str, groups: int) -> None:
    x = draw((2, 6, 2, 3), dtype, 13, 2.0, 1.0)
    scale, bias = draw((6,), dtype, 14), draw((6,), dtype, 15)
    attrs = {"num_groups": groups, "epsilon": 1e-2, "stash_type": ELEM_TYPES[stash]}
    (y,) = run(direct("GroupNormalization", [x, scale, bias], **attrs), [x, scale, bias])
    columns = (6, 1, 1)
    want, _, _ = body("layer", x, 36 // groups, scale.reshape(columns), bias.reshape(columns), 1e-2, stash, dtype)
    check(y, want)
    (model,) = expanded("GroupNormalization", [x, scale, bias], **attrs)
    assert run(model, [x, scale, bias])[0].tobytes() == y.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_group_normalization_18(dtype: str) -> None:
    """The older form: scale and bias for each group, everything in x's dtype."""
    x = draw((2, 6, 5), dtype, 16)
    scale, bias = draw((3,), dtype, 17), draw((3,), dtype, 18)
    arrays = [x, scale, bias]
    (y,) = run(direct("GroupNormalization", arrays, opset=18, num_groups=3), arrays)
    repeated = [np.repeat(a, 2).reshape(6, 1) for a in (scale, bias)]
    want, _, _ = body("layer", x, 10, repeated[0], repeated[1], 1e-5, dtype, dtype)
    check(y, want)
    (model,) = expanded("GroupNormalization", arrays, opset=18, num_groups=3)
    assert run(model, arrays)[0].tobytes() == y.tobytes()


@pytest.mark.parametrize("opset", [1, 6, 22])
@pytest.mark.parametrize("dtype", DTYPES)
def test_instance_normalization(dtype: str, opset: int) -> None:
    x = draw((2, 3, 4, 5), dtype, 19)
    scale, bias = draw((3,), dtype, 20), draw((3,), dtype, 21)
    (y,) = run(direct("InstanceNormalization", [x, scale, bias], opset=opset), [x, scale, bias])
    want: list[Fraction] = []
    scales, biases = (fractions(np.broadcast_to(a.reshape(3, 1, 1), x.shape)) for a in (scale, bias))
    values = fractions(x)
    for i in range(0, len(values), 20):
        h, _, _ = standardise(values[i : i + 20], "layer", Fraction(float(np.float32(1e-5))))
        want += affine(h, scales[i : i + 20], biases[i : i + 20])
    check(y, want)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_lp_normalization(dtype: str, axis: int) -> None:
    x = draw((3, 4, 5), dtype, 22)
    x[0] = 0
    x[:, 1] = 0
    (y,) = run(direct("LpNormalization", [x], axis=axis, p=2), [x])
    moved = np.moveaxis(x, axis, -1)
    want: list[Fraction] = []
    for row in moved.reshape(-1, moved.shape[-1]):
        want += standardise(fractions(row), "l2", Fraction(0))[0]
    check(np.ascontiguousarray(np.moveaxis(y, axis, -1)), want)


@pytest.mark.parametrize("axes", [None, [0, 1], [-1], [0, 2]])
def test_mean_variance_normalization(axes: list[int] | None) -> None:
    x = draw((2, 3, 4, 5), "f32", 23, 2.0, 1.0)
    attrs = {} if axes is None else {"axes": axes}
    (y,) = run(direct("MeanVarianceNormalization", [x], opset=13, **attrs), [x])
    wide = x.astype(np.float64)
    over = tuple(axes or (0, 2, 3))
    mean, deviation = wide.mean(over, keepdims=True), wide.std(over, keepdims=True)
    np.testing.assert_allclose(y, (wide - mean) / (deviation + 1e-9), rtol=1e-6, atol=1e-7)


def test_empty_batch() -> None:
    x, scale = np.zeros((0, 4), np.float32), np.ones(4, np.float32)
    (y,) = run(direct("RMSNormalization", [x, scale]), [x, scale])
    assert y.shape == (0, 4)
