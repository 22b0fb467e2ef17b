"""Forward norms against the formula in long double: every option, every dtype, and whatever hypothesis draws."""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_reference import (
    BF16,
    F16,
    F32,
    F64,
    FLOATS,
    assert_close,
    default_dtype,
    draw,
    reference,
    rounded,
    same_bits,
)

import truenorm


def check(x: Any, weight: Any = None, bias: Any = None, roundings: float = 0.501, **options: Any) -> Any:
    want = reference(x, weight, bias, **options)
    got = truenorm.norm(x, weight, bias, **options)
    y, total = got[:2] if options.get("residual") is not None else (got, None)
    assert y.dtype == np.dtype(options.get("out_dtype") or default_dtype(x, weight, options.get("cast", "once")))
    assert_close(y, want, roundings)
    if total is not None:
        assert total.dtype == np.dtype(options.get("sum_dtype") or x.dtype)
        assert np.array_equal(total.astype(np.float64), want.sum.astype(np.float64))
    return got


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("kind", ["rms", "layer", "l2"])
@pytest.mark.parametrize("n", [1, 7, 32, 100, 1023])
def test_kinds(kind: str, dtype: Any, n: int) -> None:
    check(draw((3, n), dtype), draw(n, dtype, 1), draw(n, dtype, 2), kind=kind, eps=1e-5)


@pytest.mark.parametrize("x", FLOATS, ids=str)
@pytest.mark.parametrize("weight", FLOATS, ids=str)
@pytest.mark.parametrize("out", [None, *FLOATS], ids=str)
def test_mixed_dtypes(x: Any, weight: Any, out: Any) -> None:
    check(draw((4, 65), x), draw(65, weight, 1), draw(65, F32, 2), out_dtype=out)


@pytest.mark.parametrize("cast", ["once", "before_scale", "t5"])
@pytest.mark.parametrize("x", FLOATS, ids=str)
@pytest.mark.parametrize("weight", [None, *FLOATS], ids=str)
def test_casts(cast: str, x: Any, weight: Any) -> None:
    w = None if weight is None else draw(129, weight, 1)
    check(draw((5, 129), x), w, cast=cast)


W = {"weight": draw(48, BF16, 1)}
OPTIONS: dict[str, dict[str, Any]] = {
    "eps outside": {"eps_mode": "outside", "eps": 0.1},
    "eps clamp": {"eps_mode": "clamp", "eps": 2.0},
    "l2 clamp": {"kind": "l2", "eps_mode": "clamp", "eps": 1e-12},
    "offset": {"weight_offset": 1.0, **W},
    "odd offset": {"weight_offset": 0.1, **W},
    "offset rounded": {"weight_offset": 1.0, "round_offset": True, **W},
    "divisor": {"divisor": 47.0},
    "divisor, layer": {"divisor": 48.0, "kind": "layer"},
    "group": {"group": 16},
    "group, layer": {"group": 8, "kind": "layer", "bias": draw(48, F32, 2)},
    "partial": {"partial": 13},
    "partial of groups": {"group": 12, "partial": 5, "kind": "layer"},
    "positions": {"weight": draw(12, F32, 1), "bias": draw(12, F32, 2), "positions": 4, "kind": "layer"},
    "heads": {"weight": draw((3, 48), F32, 1)},
    "per row": {"weight": draw((2, 3, 48), F16, 1), "bias": draw((2, 1, 48), F64, 2)},
    "residual": {"residual": draw((2, 3, 48), F32, 3)},
    "residual exact": {"residual": draw((2, 3, 48), F32, 3), "sum": "exact"},
    "residual, sum wider": {"residual": draw((2, 3, 48), F32, 3), "sum_dtype": F64},
    "residual, sum narrower": {"residual": draw((2, 3, 48), F32, 3), "sum_dtype": BF16},
    "residual of all rows": {"residual": draw(48, F32, 3)},
    "gate before": {"gate": draw((2, 3, 48), F32, 4), **W},
    "gate after": {"gate": draw((2, 3, 48), BF16, 4), "gate_order": "after", **W},
    "sigmoid before": {"gate": draw((3, 48), F32, 4), "act": "sigmoid"},
    "sigmoid after": {"gate": draw((2, 1, 48), F16, 4), "act": "sigmoid", "gate_order": "after"},
    "modulated": {"mod_scale": draw((2, 1, 48), F32, 5), "mod_shift": draw((2, 1, 48), F32, 6), "kind": "layer"},
    "scaled only": {"mod_scale": draw((2, 1, 48), F32, 5), **W},
    "rstd rounded": {"round_rstd": True, **W},
    "product rounded": {"round_product": True, "bias": draw(48, F32, 2), **W},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("x", [F32, BF16], ids=str)
def test_option(name: str, x: Any) -> None:
    check(draw((2, 3, 48), x), **OPTIONS[name])


def test_fast_grade() -> None:
    x, w = draw((8, 512)), draw(512, seed=1)
    assert_close(truenorm.rms_norm(x, w, grade="fast"), reference(x, w), roundings=2.5)


shapes = st.lists(st.integers(1, 4), max_size=4)
floats = st.sampled_from(FLOATS)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), lead=shapes, n=st.integers(1, 70), x=floats, w=floats, seed=st.integers(0, 10**6))
def test_any_combination(data: Any, lead: list[int], n: int, x: Any, w: Any, seed: int) -> None:
    def pick(*values: Any) -> Any:
        return data.draw(st.sampled_from(values))

    def operand(k: int) -> Any:
        sizes = [pick(size, 1) for size in lead][pick(0, len(lead)) :]
        return draw((*sizes, n), data.draw(floats), seed + k)

    options: dict[str, Any] = {
        "kind": pick("rms", "layer", "l2"),
        "eps": pick(1e-6, 1e-2, 1.0),
        "eps_mode": pick("inside", "outside", "clamp"),
        "cast": pick("once", "before_scale", "t5"),
        "weight_offset": pick(0.0, 1.0),
        "out_dtype": data.draw(st.one_of(st.none(), floats)),
    }
    if pick(True, False):
        options["residual"] = operand(1)
        options["sum"] = pick("rounded", "exact")
    if pick(True, False):
        options |= {"gate": operand(2), "gate_order": pick("before", "after"), "act": pick("silu", "sigmoid")}
    if pick(True, False):
        options |= {"mod_scale": operand(3), "mod_shift": operand(4)}
    if pick(True, False):
        options["partial"] = data.draw(st.integers(1, n))
    check(draw((*lead, n), x, seed), draw(n, w, seed + 5), operand(6), **options)


def test_rms_norm_to_the_last_bit() -> None:
    """float32, correctly rounded from exact fractions and 60 decimal digits of the square root."""
    x = draw((4, 33), F32, 7, 100.0)
    y = truenorm.rms_norm(x, eps=0.0)
    with localcontext() as context:
        context.prec = 60
        for row, result in zip(x, y, strict=True):
            mean = sum(Fraction(float(v)) ** 2 for v in row) / len(row)
            root = (Decimal(mean.numerator) / Decimal(mean.denominator)).sqrt()
            want = np.array([float(np.float32(float(Decimal(float(v)) / root))) for v in row], np.float32)
            assert same_bits(result, want)


def test_the_article() -> None:
    x = np.array([1, 2, 3, 4], np.float32)
    assert truenorm.rms_norm(x).tolist() == [np.float32(v) for v in (0.36514834, 0.7302967, 1.095445, 1.4605933)]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_eps_none(dtype: Any) -> None:
    x = draw((2, 5), dtype, scale=1e-3)
    eps = float(np.finfo(F64 if dtype == F64 else F32).eps)
    assert same_bits(truenorm.rms_norm(x, eps=None), truenorm.rms_norm(x, eps=eps))


def test_negative_eps_gives_nan() -> None:
    assert np.isnan(truenorm.rms_norm(np.ones((1, 4), F32), eps=-2.0)).all()
    assert np.isfinite(truenorm.rms_norm(np.ones((1, 4), F32), eps=-0.5)).all()


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("dtype", ["float32", np.float64])
def test_stats(kind: Any, dtype: Any) -> None:
    x = draw((3, 5, 24), F32, 1, shift=2.0)
    want = reference(x, kind=kind, group=8)
    y, mean, rstd = truenorm.norm(x, kind=kind, group=8, stats=dtype)
    assert same_bits(y, truenorm.norm(x, kind=kind, group=8))
    assert rstd.shape == (3, 5, 3) and rstd.dtype == dtype
    np.testing.assert_allclose(rstd, want.rstd.astype(F64), rtol=1e-7 if dtype == "float32" else 1e-15)
    if kind == "layer":
        np.testing.assert_allclose(mean, want.mean.astype(F64), rtol=1e-6 if dtype == "float32" else 1e-14)
    else:
        assert mean is None
    assert truenorm.norm(x, stats=dtype)[2].shape == (3, 5)
    assert truenorm.norm(x[0, 0], stats=dtype)[2].shape == ()


def test_named_functions() -> None:
    x, r, g = draw((4, 24)), draw((4, 24), seed=1), draw((4, 24), seed=2)
    w, b = draw(24, seed=3), draw(24, seed=4)
    assert same_bits(truenorm.rms_norm(x, w), truenorm.norm(x, w))
    assert same_bits(truenorm.layer_norm(x, w, b), truenorm.norm(x, w, b, kind="layer", eps=1e-5))
    assert same_bits(truenorm.l2_norm(x, w), truenorm.norm(x, w, kind="l2"))
    assert same_bits(
        truenorm.gated_rms_norm(x, g, w, gate_order="after"), truenorm.norm(x, w, gate=g, gate_order="after")
    )
    for got, want in zip(truenorm.add_rms_norm(x, r, w), truenorm.norm(x, w, residual=r), strict=True):
        assert same_bits(got, want)


@pytest.mark.parametrize("shape", [(2, 6), (2, 6, 5), (2, 6, 3, 4), (1, 6, 2, 2, 2), (0, 6, 3), (2, 6, 0)])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norm(shape: tuple[int, ...], groups: int) -> None:
    x, w, b = draw(shape), draw(6, seed=1), draw(6, seed=2)
    y = truenorm.group_norm(x, groups, w, b)
    assert y.shape == x.shape and y.dtype == x.dtype
    if x.size:
        want = reference(
            x.reshape(shape[0], groups, -1), w.reshape(groups, -1), b.reshape(groups, -1), kind="layer", eps=1e-5,
            positions=int(np.prod(shape[2:])),
        )  # fmt: skip
        assert_close(y.reshape(want.y.shape), want)


def test_group_norm_of_any_layout() -> None:
    x, w = draw((2, 5, 7, 6)), draw(6, seed=1)
    seen = x.transpose(0, 3, 1, 2)  # channels last in memory
    want = truenorm.group_norm(np.ascontiguousarray(seen), 3, w)
    assert same_bits(truenorm.group_norm(seen, 3, w), want)
    out = np.empty_like(x).transpose(0, 3, 1, 2)
    assert truenorm.group_norm(seen, 3, w, out=out) is out
    assert same_bits(out, want)
    copy = x.copy().transpose(0, 3, 1, 2)
    truenorm.group_norm(copy, 3, w, out=copy)
    assert same_bits(copy, want)
    flat = np.ascontiguousarray(seen)
    truenorm.group_norm(flat, 3, w, out=flat)
    assert same_bits(flat, want)


@pytest.mark.parametrize("shape", [(0,), (0, 5), (3, 0), (2, 0, 4), (2, 0, 0, 3)])
def test_empty(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, F32)
    y, mean, rstd = truenorm.norm(x, np.ones(shape[-1], F32), kind="layer", stats="float64")
    assert y.shape == shape and rstd.shape == shape[:-1] and (rstd == 0).all() and (mean == 0).all()
    q, scale = truenorm.rms_norm_quantized(x)
    assert q.shape == shape and scale.shape == shape[:-1]


def test_zero_rows_and_specials() -> None:
    x = np.array([[0, 0, 0], [1, np.inf, 2], [np.nan, 1, 2], [1, 2, 2]], F32)
    y = truenorm.rms_norm(x, eps=0.0)
    assert (y[0] == 0).all() and y[1, 0] == 0 and np.isnan(y[1, 1]) and np.isnan(y[2]).all()
    assert same_bits(y[3], rounded(reference(x[3], eps=0.0).y, F32).astype(F32))
