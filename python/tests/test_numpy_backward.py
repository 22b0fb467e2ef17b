"""Gradients against the chain rule in long double; shapes of the sums; strides, in place, accumulation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_gradient import assert_gradient, gradients
from numpy_reference import BF16, F16, F32, F64, FLOATS, draw, same_bits

import truenorm

NAMES: Any = truenorm.Gradients._fields


def check(dy: Any, x: Any, weight: Any = None, bias: Any = None, **options: Any) -> truenorm.Gradients:
    got = truenorm.norm_backward(dy, x, weight, bias, **options)
    want = gradients(dy, x, weight, bias, **options)
    for name, values in zip(NAMES, got, strict=True):
        if values is not None:
            assert_gradient(values, want[name])
    return got


@pytest.mark.parametrize("kind", ["rms", "layer", "l2"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("n", [1, 9, 64, 501])
def test_kinds(kind: str, dtype: Any, n: int) -> None:
    got = check(draw((6, n), dtype, 1), draw((6, n), dtype), draw(n, dtype, 2), draw(n, dtype, 3), kind=kind, eps=1e-3)
    assert got.dx is not None and got.dx.dtype == dtype and got.dresidual is None


W, B = draw(48, F32, 2), draw(48, F32, 3)
OPTIONS: dict[str, dict[str, Any]] = {
    "eps outside": {"eps_mode": "outside", "eps": 0.1},
    "eps clamp": {"eps_mode": "clamp", "eps": 1.0},
    "offset": {"weight_offset": 1.0, "weight": W},
    "divisor": {"divisor": 47.0, "weight": W},
    "group": {"group": 16, "weight": W},
    "group, layer": {"group": 8, "kind": "layer", "weight": W, "bias": B},
    "partial": {"partial": 13, "weight": W},
    "partial, layer": {"partial": 13, "kind": "layer", "weight": W},
    "positions": {"weight": W[:12], "bias": B[:12], "positions": 4, "kind": "layer"},
    "residual": {"residual": draw((2, 3, 48), F32, 4), "dsum": draw((2, 3, 48), F32, 5), "weight": W},
    "gate before": {"gate": draw((2, 3, 48), F32, 4), "weight": W},
    "gate after": {"gate": draw((2, 3, 48), F32, 4), "gate_order": "after", "weight": W},
    "sigmoid before": {"gate": draw((2, 3, 48), F32, 4), "act": "sigmoid"},
    "sigmoid after": {"gate": draw((2, 3, 48), F32, 4), "act": "sigmoid", "gate_order": "after"},
    "modulated": {
        "mod_scale": draw((2, 1, 48), F32, 5), "mod_shift": draw((2, 1, 48), F32, 6), "kind": "layer",
        "weight": W, "bias": B,
    },
    "modulated each row": {"mod_scale": draw((2, 3, 48), F32, 5), "mod_shift": draw(48, F32, 6), "weight": W},
    "before_scale": {"cast": "before_scale", "weight": W, "need": ("dweight",)},
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_option(name: str, dtype: Any) -> None:
    check(draw((2, 3, 48), dtype, 1), draw((2, 3, 48), dtype), **OPTIONS[name])


SHAPES = [
    (7,),
    (5, 7),
    (1, 7),
    (4, 5, 7),
    (4, 1, 7),
    (1, 5, 7),
    (3, 4, 5, 7),
    (3, 1, 5, 7),
    (1, 4, 1, 7),
    (3, 4, 1, 7),
    (2, 1, 4, 1, 7),
]


@pytest.mark.parametrize("weight", SHAPES)
@pytest.mark.parametrize("bias", [(7,), (4, 5, 7), (3, 1, 1, 7), (4, 1, 7)])
def test_shapes_of_sums(weight: tuple[int, ...], bias: tuple[int, ...]) -> None:
    """Weights that repeat along some axes only: the gradient is summed over just those, in one call or several."""
    shape = (2, 3, 4, 5, 7)
    got = check(
        draw(shape, F32, 1),
        draw(shape, F32),
        draw(weight, F32, 2),
        draw(bias, F32, 3),
        kind="layer",
        mod_scale=draw((3, 1, 1, 7)),
    )
    assert got.dweight is not None and got.dweight.shape == weight
    assert got.dbias is not None and got.dbias.shape == bias


@settings(max_examples=100, deadline=None)
@given(data=st.data(), lead=st.lists(st.integers(1, 5), max_size=4), n=st.integers(1, 40), seed=st.integers(0, 10**6))
def test_any_combination(data: Any, lead: list[int], n: int, seed: int) -> None:
    def pick(*values: Any) -> Any:
        return data.draw(st.sampled_from(values))

    def operand(k: int, dtype: Any = None) -> Any:
        sizes = [pick(size, 1) for size in lead][pick(0, len(lead)) :]
        return draw((*sizes, n), dtype or pick(*FLOATS), seed + k)

    x = draw((*lead, n), pick(*FLOATS), seed)
    options: dict[str, Any] = {
        "kind": pick("rms", "layer", "l2"),
        "eps": pick(1e-2, 1.0),
        "eps_mode": pick("inside", "outside"),
        "dtypes": {"dx": pick(*FLOATS), "dweight": pick(*FLOATS)},
    }
    if pick(True, False):
        options["dsum"] = operand(1)
    if pick(True, False):
        options |= {"gate": operand(2), "gate_order": pick("before", "after"), "act": pick("silu", "sigmoid")}
    if pick(True, False):
        options |= {"mod_scale": operand(3), "mod_shift": operand(4)}
    check(operand(5), x, operand(6), operand(7), **options)


VIEWS: dict[str, Any] = {
    "negative": lambda a: np.ascontiguousarray(a[::-1, :, ::-1, ::-1])[::-1, :, ::-1, ::-1],
    "fortran": np.asfortranarray,
    "transposed": lambda a: np.ascontiguousarray(a.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3),
    "spread": lambda a: np.repeat(np.repeat(a, 2, 1), 2, 3)[:, ::2, :, ::2],
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("weight", [(5, 33), (6, 1, 33), (33,)])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_strides(name: str, weight: tuple[int, ...], dtype: Any) -> None:
    shape, view = (3, 6, 5, 33), VIEWS[name]
    dy, x, gate, w = draw(shape, dtype, 1), draw(shape, dtype), draw(shape, dtype, 2), draw(weight, dtype, 3)
    want = truenorm.norm_backward(dy, x, w, gate=gate, dsum=dy)
    got = truenorm.norm_backward(view(dy), view(x), w, gate=view(gate), dsum=view(dy))
    for a, b in zip(got, want, strict=True):
        assert (a is None and b is None) or same_bits(a, b)
    out: Any = {key: view(np.zeros(shape, dtype)) for key in ("dx", "dgate")}
    again = truenorm.norm_backward(dy, x, w, gate=gate, dsum=dy, out=out)
    assert again.dx is out["dx"] and same_bits(again.dx, want.dx) and same_bits(out["dgate"], want.dgate)


def test_broadcast_dy() -> None:
    x, w = draw((4, 6, 33)), draw(33, seed=1)
    one = np.ones((), F32)
    for part in (np.broadcast_to(one, x.shape), np.broadcast_to(draw((4, 1, 33), seed=2), x.shape)):
        got, want = truenorm.rms_norm_backward(part, x, w), truenorm.rms_norm_backward(part.copy(), x, w)
        assert same_bits(got.dx, want.dx) and same_bits(got.dweight, want.dweight)


@pytest.mark.parametrize("over", ["dy", "x", "residual", "gate", "dsum"])
def test_in_place(over: str) -> None:
    operands: Any = {k: draw((6, 40), F32, i) for i, k in enumerate(("dy", "x", "residual", "gate", "dsum"))}
    w = draw((6, 1, 40)[1:], F32, 9)
    want = truenorm.norm_backward(weight=w, **operands)
    got = truenorm.norm_backward(weight=w, out={"dx": operands[over]}, **operands)
    assert got.dx is operands[over]
    for a, b in zip(got, want, strict=True):
        assert (a is None and b is None) or same_bits(a, b)


def test_in_place_with_several_sums() -> None:
    dy, x = draw((3, 4, 5, 8)), draw((3, 4, 5, 8), seed=1)
    w, b = draw((4, 1, 8), seed=2), draw((3, 1, 5, 8), seed=3)
    want = truenorm.layer_norm_backward(dy, x, w, b)
    got = truenorm.layer_norm_backward(dy, x, w, b, out={"dx": dy})
    assert got.dx is dy and all(same_bits(a, c) for a, c in zip(got, want, strict=True) if a is not None)


@pytest.mark.parametrize("w_shape", [(8,), (5, 8), (4, 1, 8)])
def test_accumulate(w_shape: tuple[int, ...]) -> None:
    dy, x, w = draw((3, 4, 5, 8)), draw((3, 4, 5, 8), seed=1), draw(w_shape, seed=2)
    fresh = truenorm.rms_norm_backward(dy, x, w, dtypes={"dweight": "float64"})
    for strided in (False, True):
        old = draw(w_shape, F64, 5)
        total = np.zeros((*w_shape[:-1], 16))[..., ::2] if strided else np.zeros(w_shape)
        total[...] = old
        got = truenorm.rms_norm_backward(dy, x, w, out={"dweight": total}, accumulate=True)
        assert got.dweight is total and fresh.dweight is not None
        assert same_bits(total, old + fresh.dweight) and same_bits(got.dx, fresh.dx)


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("group", [None, 10])
def test_saved_statistics(kind: Any, group: Any) -> None:
    dy, x, w = draw((3, 4, 50)), draw((3, 4, 50), seed=1, shift=1.0), draw(50, seed=2)
    _, mean, rstd = truenorm.norm(x, w, kind=kind, group=group, stats="float64")
    got = truenorm.norm_backward(dy, x, w, kind=kind, group=group, mean=mean, rstd=rstd)
    want = truenorm.norm_backward(dy, x, w, kind=kind, group=group)
    assert got.dx is not None and want.dx is not None and got.dweight is not None and want.dweight is not None
    np.testing.assert_allclose(got.dx, want.dx, rtol=3e-7, atol=1e-7)
    np.testing.assert_allclose(got.dweight, want.dweight, rtol=3e-7, atol=1e-6)


def test_what_is_asked_for() -> None:
    dy, x, w = draw((4, 8)), draw((4, 8), BF16, 1), draw(8, F16, 2)
    assert [g is not None for g in truenorm.norm_backward(dy, x)] == [True] + 6 * [False]
    got = truenorm.norm_backward(dy, x, w, need=["dweight"])
    assert got.dx is None and got.dweight is not None and got.dweight.dtype == F16
    got = truenorm.norm_backward(dy, x, need=("dbias", "dweight"))
    assert got.dbias is not None and got.dbias.shape == (8,) and got.dbias.dtype == BF16
    got = truenorm.norm_backward(dy, x, w, residual=x, dtypes={"dresidual": "float64", "dx": np.float32})
    assert got.dx is not None and got.dx.dtype == F32 and got.dresidual is not None and got.dresidual.dtype == F64


@pytest.mark.parametrize("shape", [(0, 6), (3, 0, 6), (0, 5, 6), (3, 0)])
def test_no_rows(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, F32)
    n = shape[-1]
    got = truenorm.layer_norm_backward(x, x, np.ones(n, F32), np.ones((5, n) if shape == (0, 5, 6) else n, F32))
    assert got.dx is not None and got.dx.shape == shape
    assert got.dweight is not None and not got.dweight.any() and got.dbias is not None and not got.dbias.any()


@pytest.mark.parametrize("shape", [(3, 6), (3, 6, 5), (2, 6, 3, 4)])
@pytest.mark.parametrize("groups", [1, 3, 6])
def test_group_norm(shape: tuple[int, ...], groups: int) -> None:
    dy, x, w, b = draw(shape), draw(shape, seed=1), draw(6, seed=2), draw(6, seed=3)
    rows = (shape[0], groups, -1)
    want = gradients(
        dy.reshape(rows), x.reshape(rows), w.reshape(groups, -1), b.reshape(groups, -1), kind="layer", eps=1e-5,
        positions=int(np.prod(shape[2:])),
    )  # fmt: skip
    got = truenorm.group_norm_backward(dy, x, groups, w, b)
    assert got.dx is not None and got.dx.shape == shape
    assert_gradient(got.dx.reshape(want["dx"][0].shape), want["dx"])
    for name in ("dweight", "dbias"):
        values = getattr(got, name)
        assert values.shape == (6,)
        assert_gradient(values.reshape(groups, -1), want[name])
