"""Strides, broadcasting, out=, in place: the bits of contiguous arrays, and no copies but the documented ones."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_reference import BF16, F16, F32, F64, FLOATS, draw, same_bits

import truenorm


def views(a: Any) -> dict[str, Any]:
    """Arrays equal to `a` [p, q, r, n], laid out in other ways."""
    spread = np.zeros([2 * d for d in a.shape], a.dtype)
    spread[::2, ::2, ::2, ::2] = a
    packed = np.zeros(a.shape, np.dtype([("flag", "i1"), ("value", a.dtype)]))  # odd strides
    packed["value"] = a
    shifted = np.zeros(a.nbytes + 1, np.uint8)[1:].view(a.dtype).reshape(a.shape)  # misaligned
    shifted[...] = a
    return {
        "negative": np.ascontiguousarray(a[::-1, :, ::-1, ::-1])[::-1, :, ::-1, ::-1],
        "fortran": np.asfortranarray(a),
        "transposed": np.ascontiguousarray(a.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3),
        "rotated": np.ascontiguousarray(a.transpose(2, 0, 1, 3)).transpose(1, 2, 0, 3),
        "channels first": np.ascontiguousarray(a.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1),
        "spread": spread[::2, ::2, ::2, ::2],
        "odd": packed["value"],
        "misaligned": shifted,
        "read-only": frozen(a),
    }


def frozen(a: Any) -> Any:
    a = a.copy()
    a.flags.writeable = False
    return a


NAMES = tuple(views(np.zeros((2, 2, 2, 2))))
SHAPE = (3, 4, 5, 37)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_views_of_x(name: str, dtype: Any) -> None:
    x, w = draw(SHAPE, dtype), draw(37, F32, 1)
    assert same_bits(truenorm.rms_norm(views(x)[name], w), truenorm.rms_norm(x, w))
    assert same_bits(truenorm.layer_norm(views(x)[name], w), truenorm.layer_norm(x, w))


@pytest.mark.parametrize("name", NAMES)
def test_views_of_all_operands(name: str) -> None:
    x, r, g, w, s = (draw(SHAPE, F32, k) for k in range(5))
    options = {"residual": r, "gate": g, "mod_scale": s}
    want = truenorm.norm(x, w, **options)
    got = truenorm.norm(x, views(w)[name], **{key: views(value)[name] for key, value in options.items()})
    assert all(same_bits(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "read-only"])
@pytest.mark.parametrize("x_name", NAMES)
def test_out(name: str, x_name: str) -> None:
    x, r, w = draw(SHAPE, BF16), draw(SHAPE, F16, 1), draw(37, F32, 2)
    out, total = views(np.zeros(SHAPE, F32))[name], views(np.zeros(SHAPE, F64))[name]
    y, s = truenorm.norm(views(x)[x_name], w, residual=r, out=out, sum_out=total)
    assert y is out and s is total
    want = truenorm.norm(x, w, residual=r, out_dtype=F32, sum_dtype=F64)
    assert same_bits(y, want[0]) and same_bits(s, want[1])


@pytest.mark.parametrize("name", [name for name in NAMES if name != "read-only"])
def test_in_place(name: str) -> None:
    x, r, w = draw(SHAPE), draw(SHAPE, seed=1), draw(37, seed=2)
    a, b = views(x)[name], views(r)[name]
    want = truenorm.add_rms_norm(x, r, w)
    truenorm.add_rms_norm(a, b, w, out=a, sum_out=b)
    assert same_bits(a, want[0]) and same_bits(b, want[1])
    g = views(r)[name]
    want_gated = truenorm.gated_rms_norm(x, r, w)
    assert same_bits(truenorm.gated_rms_norm(x, g, w, out=g), want_gated)


def test_broadcast() -> None:
    row = draw(37)
    x = np.broadcast_to(row, (3, 4, 37))
    assert same_bits(truenorm.rms_norm(x), np.broadcast_to(truenorm.rms_norm(row), (3, 4, 37)))
    column = np.broadcast_to(draw((6, 1)), (6, 37))
    assert same_bits(truenorm.rms_norm(column), truenorm.rms_norm(column.copy()))


def test_one_and_no_axes() -> None:
    x = draw((1, 9))
    assert same_bits(truenorm.rms_norm(x[0]), truenorm.rms_norm(x)[0])
    assert same_bits(truenorm.rms_norm(x.reshape(1, 1, 1, 1, 1, 9)).reshape(1, 9), truenorm.rms_norm(x))
    with pytest.raises(ValueError, match="at least one axis"):
        truenorm.rms_norm(np.ones((), F32))


axis = st.tuples(st.integers(1, 4), st.sampled_from([1, 2, -1, -2, 0]))


@settings(max_examples=200, deadline=None)
@given(axes=st.lists(axis, min_size=1, max_size=6), order=st.randoms(), dtype=st.sampled_from(FLOATS))
def test_any_strides(axes: list[tuple[int, int]], order: Any, dtype: Any) -> None:
    base = draw([size * max(abs(step), 1) for size, step in axes], dtype)
    cut = base[tuple(slice(None, None, step) if step else slice(None) for _, step in axes)]
    x = np.broadcast_to(cut[tuple(slice(1) if step == 0 else slice(None) for _, step in axes)], cut.shape)
    x = x.transpose(order.sample(range(x.ndim), x.ndim))
    w = draw(x.shape[-1], F32, 1)
    assert same_bits(truenorm.norm(x, w, kind="layer"), truenorm.norm(np.ascontiguousarray(x), w, kind="layer"))


def peak_bytes(call: Any) -> int:
    call()
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", [name for name in NAMES if name != "odd"])
def test_nothing_is_copied(name: str) -> None:
    shape = (8, 9, 10, 256)
    x, out = views(draw(shape))[name], np.empty(shape, F32)
    gate = views(draw(shape, BF16, 1))[name]
    w = np.broadcast_to(draw((9, 1, 256), seed=2), shape)
    assert peak_bytes(lambda: truenorm.norm(x, w, gate=gate, out=out)) < 8192


def test_layout_of_results() -> None:
    x = views(draw(SHAPE))["transposed"]
    y = truenorm.rms_norm(x)
    assert type(y) is np.ndarray and y.flags.c_contiguous and y.flags.owndata and y.flags.writeable


class Tagged(np.ndarray[Any, Any]):
    pass


def test_subclasses_and_memory_maps(tmp_path: Any) -> None:
    x = draw((3, 8))
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert same_bits(truenorm.rms_norm(mapped), truenorm.rms_norm(x))
    assert type(truenorm.rms_norm(x.view(Tagged))) is np.ndarray
