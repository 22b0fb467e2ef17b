"""Whatever is wrong gives a TypeError or ValueError that names the operand, and leaves the outputs alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy_reference import BF16, F16, F32, draw

import truenorm
from truenorm import norm, norm_apply, norm_backward, norm_quantized

X = draw((2, 3, 4))
ROW = X[0, 0]
READ_ONLY = np.broadcast_to(ROW, X.shape)
SELF_OVERLAP = np.lib.stride_tricks.as_strided(np.zeros(8, F32), X.shape, (0, 16, 4))

CASES: dict[str, tuple[Any, type[Exception], str]] = {
    "a number": (lambda: norm(1.0), TypeError, "x: expected a NumPy array or an object with __dlpack__, got float"),
    "a list": (lambda: norm([1.0]), TypeError, "x: .* got list"),
    "None": (lambda: norm(None), TypeError, "x: expected an array, got None"),
    "no x": (lambda: norm(), TypeError, "missing 1 required positional argument: 'x'"),
    "integers": (lambda: norm(np.ones((2, 3), int)), TypeError, "x: dtype int64 is not one of"),
    "complex weight": (lambda: norm(X, ROW * 1j), TypeError, "weight: dtype complex64 is not one of"),
    "objects": (lambda: norm(X.astype(object)), TypeError, "x: dtype object"),
    "fp8 input": (lambda: norm(X, bias=ROW.astype("float8_e5m2")), TypeError, "bias: dtype float8_e5m2"),
    "byte order": (lambda: norm(X.astype(">f4")), TypeError, "x: dtype >f4 .* byte order"),
    "masked": (lambda: norm(np.ma.ones(3)), TypeError, "x: masked arrays"),
    "no axis": (lambda: norm(np.ones(())), ValueError, "x: needs at least one axis"),
    "40 axes": (lambda: norm(np.ones((1,) * 40)), ValueError, "x: too many axes"),
    "weight's length": (lambda: norm(X, np.ones(3)), ValueError, r"weight: shape \(3,\) does not fit \(2, 3, 4\)"),
    "weight's heads": (lambda: norm(X, np.ones((2, 4))), ValueError, r"weight: shape \(2, 4\) does not fit"),
    "weight's axes": (lambda: norm(X, X[None]), ValueError, r"weight: shape \(1, 2, 3, 4\) does not fit"),
    "a number for weight": (lambda: norm(X, 2.0), TypeError, "weight: .* got float"),
    "a single weight": (lambda: norm(X, np.ones(1)), ValueError, r"weight: shape \(1,\) does not fit"),
    "residual": (lambda: norm(X, residual=X[..., :3]), ValueError, "residual: shape"),
    "gate": (lambda: norm(X, gate=X[:, :2]), ValueError, "gate: shape"),
    "mod_scale": (lambda: norm(X, mod_scale=X[0, 0, 0]), TypeError, "mod_scale: .* got float32"),
    "eps is text": (lambda: norm(X, eps="1e-6"), TypeError, "eps: expected a number, got '1e-6'"),
    "eps is nan": (lambda: norm(X, eps=np.nan), ValueError, "eps: must be a number"),
    "option": (lambda: norm(X, epsilon=1), TypeError, "unexpected keyword argument 'epsilon'"),
    "option of rms_norm": (lambda: truenorm.rms_norm(X, epsilon=1), TypeError, "unexpected keyword argument 'epsilon'"),
    "kind": (lambda: norm(X, kind="batch"), ValueError, "kind: expected one of 'rms', 'layer', 'l2', got 'batch'"),
    "kind's type": (lambda: norm(X, kind=1), TypeError, "kind: expected one of"),
    "cast": (lambda: norm(X, cast="twice"), ValueError, "cast: expected one of 'once', 'before_scale', 't5'"),
    "grade": (lambda: norm(X, grade="A"), ValueError, "grade: expected"),
    "eps_mode": (lambda: norm(X, eps_mode="in"), ValueError, "eps_mode: expected"),
    "sum": (lambda: norm(X, sum="no"), ValueError, "sum: expected"),
    "gate_order": (lambda: norm(X, gate_order="no"), ValueError, "gate_order: expected"),
    "act": (lambda: norm(X, act="relu"), ValueError, "act: expected"),
    "group": (lambda: norm(X, group=3), ValueError, "group: 3 does not divide"),
    "no group": (lambda: norm(X, group=0), ValueError, "group: must be at least 1"),
    "group's type": (lambda: norm(X, group=1.5), TypeError, "group: expected an integer"),
    "partial": (lambda: norm(X, partial=5), ValueError, "partial: 5 of 4"),
    "partial of a group": (lambda: norm(X, group=2, partial=3), ValueError, "partial: 3 of 2"),
    "positions": (lambda: norm(X, positions=3), ValueError, "positions: 3 does not divide"),
    "divisor": (lambda: norm(X, divisor=-1), ValueError, "divisor: must be positive"),
    "divisor 0": (lambda: norm(X, divisor=0), ValueError, "divisor: must be positive"),
    "offset": (lambda: norm(X, ROW, weight_offset=np.inf), ValueError, "weight_offset: must be finite"),
    "threads": (lambda: norm(X, threads=0), ValueError, "threads: must be at least 1"),
    "out_dtype": (lambda: norm(X, out_dtype="int32"), TypeError, "out_dtype: dtype int32 is not supported"),
    "out_dtype int8": (lambda: norm(X, out_dtype="int8"), TypeError, "out_dtype: int8 and fp8 need a scale"),
    "no dtype": (lambda: norm(X, out_dtype="float12"), TypeError, "out_dtype: 'float12' is not a dtype"),
    "stats": (lambda: norm(X, stats="float16"), TypeError, "stats: float32 or float64"),
    "sum_dtype alone": (lambda: norm(X, sum_dtype="float32"), ValueError, "sum_dtype: there is no residual"),
    "sum_out alone": (lambda: norm(X, sum_out=X), ValueError, "sum_out: there is no residual"),
    "sum int8": (lambda: norm(X, residual=X, sum_dtype="int8"), TypeError, "sum_dtype"),
    "out's shape": (lambda: norm(X, out=np.ones(3)), ValueError, r"out: shape \(3,\) is not x's \(2, 3, 4\)"),
    "out's dtype": (lambda: norm(X, out=np.ones(X.shape, int)), TypeError, "out: dtype int64 cannot be written"),
    "out int8": (lambda: norm(X, out=np.ones(X.shape, "i1")), TypeError, "out: int8 and fp8 need a scale"),
    "out and out_dtype": (lambda: norm(X, out=X.copy(), out_dtype="float16"), TypeError, "out_dtype"),
    "out read-only": (lambda: norm(X, out=READ_ONLY), ValueError, "out: the array is read-only"),
    "out over itself": (lambda: norm(X, out=SELF_OVERLAP), ValueError, "out: elements of the array overlap"),
    "quantised dtype": (lambda: norm_quantized(X, dtype="float32"), TypeError, "dtype: expected int8"),
    "quantised out": (lambda: norm_quantized(X, out=X), TypeError, "dtype: expected int8"),
    "scale's shape": (lambda: norm_quantized(X, scale=np.ones(4)), ValueError, r"scale: shape \(4,\) does not fit"),
    "scale's dtype": (lambda: norm_quantized(X, scale=np.ones((2, 3), F16)), TypeError, "scale: dtype float16"),
    "scale_dtype": (lambda: norm_quantized(X, scale_dtype="float16"), TypeError, "scale_dtype: float32 or float64"),
    "apply without rstd": (lambda: norm_apply(X, rstd=None), TypeError, "rstd: expected an array"),
    "apply without mean": (lambda: norm_apply(X, rstd=np.ones((2, 3)), kind="layer"), TypeError, "mean: kind 'layer'"),
    "rstd's shape": (lambda: norm_apply(X, rstd=np.ones((2, 3, 1))), ValueError, r"rstd: shape \(2, 3, 1\) does not"),
    "rstd's dtype": (lambda: norm_apply(X, rstd=np.ones((2, 3), F16)), TypeError, "rstd: dtype float16"),
    "no dy": (lambda: norm_backward(None, X), TypeError, "dy: expected an array"),
    "dy's shape": (lambda: norm_backward(X[..., :3], X), ValueError, "dy: shape"),
    "dgate of nothing": (lambda: norm_backward(X, X, need=("dgate",)), ValueError, "need: dgate without gate"),
    "unknown gradient": (lambda: norm_backward(X, X, need=("dy",)), ValueError, "need: there is no gradient 'dy'"),
    "no gradient": (lambda: norm_backward(X, X, need=()), ValueError, "need: no gradient"),
    "need is text": (lambda: norm_backward(X, X, need="dx"), TypeError, "need: expected a collection"),
    "out of gradients": (lambda: norm_backward(X, X, out=X), TypeError, "out: expected a dict"),
    "unknown out": (lambda: norm_backward(X, X, out={"x": X}), ValueError, "out: there is no gradient 'x'"),
    "dx's shape": (lambda: norm_backward(X, X, out={"dx": ROW}), ValueError, r"dx: shape \(4,\) is not \(2, 3, 4\)"),
    "dx int8": (lambda: norm_backward(X, X, dtypes={"dx": "int8"}), TypeError, "dx: float64, float32"),
    "accumulate": (lambda: norm_backward(X, X, ROW, accumulate=True), ValueError, "accumulate: there is no out"),
    "rstd without mean": (lambda: norm_backward(X, X, kind="layer", rstd=np.ones((2, 3))), TypeError, "mean: kind"),
    "groups": (lambda: truenorm.group_norm(X, 2), ValueError, "num_groups: 2 does not divide 3"),
    "no channels": (lambda: truenorm.group_norm(ROW, 2), ValueError, "x: shape .* has no channels"),
    "channels": (lambda: truenorm.group_norm(X, 3, np.ones(4)), ValueError, r"weight: shape \(4,\) is not \(3,\)"),
    "moments": (lambda: truenorm.moments(X, eps=1), TypeError, "unexpected keyword argument 'eps'"),
    "moments' shapes": (
        lambda: truenorm.merge_moments(truenorm.moments(X), truenorm.moments(ROW)), ValueError, "moments: shapes",
    ),
    "moments' kinds": (
        lambda: truenorm.merge_moments(truenorm.moments(X), truenorm.moments(X, kind="layer")), TypeError, "mean of a",
    ),
    "instruction set": (lambda: truenorm.set_isa("mmx"), ValueError, "'mmx' is not usable here; these are: scalar"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_error(name: str) -> None:
    call, kind, message = CASES[name]
    with pytest.raises(kind, match=message):
        call()


def overlapping() -> dict[str, Any]:
    a, b = draw((9, 8)), draw((4, 5, 6, 8))
    c = b.transpose(0, 2, 1, 3)  # with a contiguous operand: several calls
    return {
        "shifted": (a, lambda: norm(a[:-1], out=a[1:])),
        "weight": (a, lambda: norm(a, a[0], out=a)),
        "other dtype": (a, lambda: norm(a.view(BF16)[:, :8], out=a)),
        "out and sum": (a, lambda: norm(a, residual=a.copy(), out=a, sum_out=a)),
        "sum over gate": (a, lambda: norm(a, residual=a.copy(), gate=a, sum_out=a)),
        "reversed": (a, lambda: norm(a, out=a[::-1])),
        "several calls, shifted": (b, lambda: norm(c[:-1], gate=np.ones((3, 6, 5, 8)), out=c[1:])),
        "several calls, transposed": (
            b,
            lambda: norm(b.transpose(1, 0, 2, 3), out=b.transpose(0, 1, 2, 3).reshape(5, 4, 6, 8)),
        ),
        "several calls, weight": (b, lambda: norm(c, b[0, 0, 0], gate=np.ones(c.shape), out=c)),
        "dweight": (a, lambda: norm_backward(a, a, a[0], out={"dweight": a[1]})),
        "dx": (a, lambda: norm_backward(a[1:], a[1:], out={"dx": a[:-1]})),
        "quantised": (a, lambda: norm_quantized(a, out=a.view("i1")[:, :8])),
    }


@pytest.mark.parametrize("name", overlapping())
def test_overlap(name: str) -> None:
    memory, call = overlapping()[name]
    before = memory.copy()
    with pytest.raises(ValueError, match="overlap"):
        call()
    assert (memory == before).all()


def test_interleaved_arrays_do_not_overlap() -> None:
    pair = np.zeros((6, 2, 8), F32)
    pair[:, 0] = draw((6, 8))
    truenorm.rms_norm(pair[:, 0], out=pair[:, 1])
    assert (pair[:, 1] == truenorm.rms_norm(draw((6, 8)))).all()


def test_no_references_are_kept() -> None:
    import sys

    x, w = draw((4, 8)), draw(8)
    before = [sys.getrefcount(a) for a in (x, w)]
    for _ in range(10):
        norm(x, w, residual=x)
        norm_backward(x, x, w)
        with pytest.raises(ValueError, match="group"):
            norm(x, w, group=3)
    assert [sys.getrefcount(a) for a in (x, w)] == before
