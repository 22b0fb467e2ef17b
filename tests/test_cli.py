"""`truenorm norm`: every option and dtype against the formula in long double."""

import ml_dtypes
import numpy as np
import pytest
from norm_reference import DTYPES, LD, assert_close, draw, reference, rounded, ulp, wide


@pytest.mark.parametrize("kind", ["rms", "layer", "l2"])
@pytest.mark.parametrize("shape", [(7,), (1,), (3, 8), (2, 3, 65), (2, 3, 4, 33), (2, 1, 3, 1, 40)])
def test_ranks_and_kinds(cli, kind, shape):
    x = draw(shape, shift=0.5)
    y = cli.norm(x, "--kind", kind)
    assert y.dtype == x.dtype
    assert_close(y, reference(x, kind))


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("grade", ["exact", "fast"])
def test_dtypes_and_grades(cli, dtype, kind, grade):
    x, w, b = draw((5, 100), dtype), draw(100, dtype, 1), draw(100, dtype, 2)
    cli.save("w.npy", w)
    cli.save("b.npy", b)
    options = ["--kind", kind, "--grade", grade, "--weight", "w.npy", "--bias", "b.npy"]
    y = cli.norm(x, *options)
    assert y.dtype == x.dtype
    want = reference(x, kind, weight=w, bias=b)
    if grade == "exact" and dtype != "f64":
        assert_close(y, want)
    else:  # these bounds are in ulp of the larger term of the last sum
        larger = np.maximum(np.abs(want - wide(b)), np.abs(wide(b)))
        assert (np.abs(wide(y) - want) <= 4 * ulp(np.maximum(larger, np.abs(want)), dtype)).all()


def test_eps_is_used(cli):
    x = draw((4, 16), scale=1e-3)
    assert_close(cli.norm(x, "--kind", "rms", "--eps", "0.25"), reference(x, eps=0.25))
    assert_close(cli.norm(x, "--kind", "rms", "--eps=0"), reference(x, eps=0))


@pytest.mark.parametrize("mode", ["inside", "outside", "clamp"])
@pytest.mark.parametrize("kind", ["rms", "layer", "l2"])
def test_eps_modes(cli, mode, kind):
    x = draw((6, 20)) * np.float32([[1], [0.1], [0.01], [1e-3], [10], [0]])
    y = cli.norm(x, "--kind", kind, "--eps", "0.03", "--eps-mode", mode)
    assert_close(y, reference(x, kind, eps=0.03, eps_mode=mode))


@pytest.mark.parametrize("dtype", DTYPES)
def test_weight_and_bias_per_head(cli, dtype):
    x, w, b = draw((3, 5, 4, 16)), draw((4, 16), dtype, 1), draw((4, 16), dtype, 2)
    cli.save("w.npy", w)
    cli.save("b.npy", b)
    flags = ["--bf16"] if dtype == "bf16" else []
    y = cli.norm(x, *flags, "--kind", "layer", "--weight", "w.npy", "--bias", "b.npy")
    assert_close(y, reference(x, "layer", weight=w, bias=b))


def test_bias_alone(cli):
    x, b = draw((3, 12)), draw(12, seed=1)
    cli.save("b.npy", b)
    assert_close(cli.norm(x, "--kind", "rms", "--bias", "b.npy"), reference(x, bias=b))


@pytest.mark.parametrize("offset", [0, 1])
def test_weight_offset(cli, offset):
    x, w = draw((3, 12), "bf16"), draw(12, "bf16", 1, scale=0.1)
    cli.save("w.npy", w)
    y = cli.norm(x, "--kind", "rms", "--weight", "w.npy", "--weight-offset", offset)
    assert_close(y, reference(x, weight=w, offset=offset))


@pytest.mark.parametrize("dtype", DTYPES)
def test_residual_and_sum(cli, dtype):
    x, r = draw((2, 3, 24), dtype), draw((2, 3, 24), dtype, 1)
    cli.save("r.npy", r)
    y = cli.norm(x, "--kind", "rms", "--residual", "r.npy", "--sum", "s.npy")
    s = cli.load("s.npy", dtype == "bf16")
    assert s.dtype == x.dtype
    assert (wide(s) == rounded(wide(x) + wide(r), dtype)).all()
    assert_close(y, reference(x, residual=r), 4 if dtype == "f64" else 1)
    (cli.path / "s.npy").unlink()
    assert (cli.norm(x, "--kind", "rms", "--residual", "r.npy") == y).all()


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("act", ["silu", "sigmoid", None])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_gate(cli, order, act, dtype):
    x, g, w = draw((4, 40), dtype), draw((4, 40), dtype, 1, scale=3), draw(40, dtype, 2)
    cli.save("g.npy", g)
    cli.save("w.npy", w)
    chosen = ["--act", act] if act else []
    y = cli.norm(x, "--kind", "rms", "--weight", "w.npy", "--gate", "g.npy", "--gate-order", order, *chosen)
    assert_close(y, reference(x, weight=w, gate=g, order=order, act=act or "silu"))


@pytest.mark.parametrize("kind", ["rms", "layer", "l2"])
def test_group(cli, kind):
    x = draw((3, 48))
    assert_close(cli.norm(x, "--kind", kind, "--group", 16), reference(x, kind, group=16))


def test_partial_and_divisor(cli):
    x = draw((3, 48))
    assert_close(cli.norm(x, "--kind", "rms", "--partial", 12), reference(x, partial=12))
    assert_close(cli.norm(x, "--kind", "rms", "--group", 16, "--partial", 3), reference(x, group=16, partial=3))
    assert_close(cli.norm(x, "--kind", "rms", "--divisor", 47), reference(x, divisor=47))


@pytest.mark.parametrize("cast", ["once", "before_scale", "t5"])
@pytest.mark.parametrize("wtype", [*DTYPES, None])
@pytest.mark.parametrize("xtype", DTYPES)
def test_casts_and_default_output_dtype(cli, cast, xtype, wtype):
    x, w = draw((4, 32), xtype), None if wtype is None else draw(32, wtype, 1)
    weight = []
    if w is not None:
        cli.save("w.npy", w)
        weight = ["--bf16", "--weight", "w.npy"]
    if cast == "once" or (cast == "before_scale" and (w is None or xtype == wtype)):
        want = xtype
    elif cast == "t5":
        want = wtype if wtype in ("bf16", "f16") else "f32"
    else:
        want = "f64" if "f64" in (xtype, wtype) else "f32"
    y = cli.norm(x, "--kind", "rms", "--cast", cast, *weight, bf16_out=want == "bf16")
    assert y.dtype == DTYPES[want]
    assert_close(y, reference(x, weight=w, cast=cast), 4 if want == "f64" else 1)


@pytest.mark.parametrize("xtype", DTYPES)
@pytest.mark.parametrize("out", DTYPES)
def test_out_dtype(cli, xtype, out):
    x = draw((4, 32), xtype)
    y = cli.norm(x, "--kind", "layer", "--out-dtype", out, bf16_out=out == "bf16")
    assert y.dtype == DTYPES[out]
    assert_close(y, reference(x, "layer"), 4 if out == "f64" else 1)


QUANTISED = {"int8": ("i1", 127), "e4m3": (ml_dtypes.float8_e4m3fn, 448), "e5m2": (ml_dtypes.float8_e5m2, 57344)}


def assert_quantised(got, want, dtype):
    """Each code is the nearest one, saturated."""
    most = QUANTISED[dtype][1]
    values = np.clip(want, -128 if dtype == "int8" else -most, most)
    unit = LD(1) if dtype == "int8" else ulp(values, dtype)
    assert (np.abs(wide(got) - values) <= (0.5 + 1e-5) * unit).all()


@pytest.mark.parametrize("dtype", QUANTISED)
def test_static_scale(cli, dtype):
    x = draw((6, 64))
    scale = {"int8": 0.02, "e4m3": 0.004, "e5m2": 0.01}[dtype]
    y = cli.norm(x, "--kind", "rms", "--out-dtype", dtype, "--scale", scale)
    assert y.dtype == ("i1" if dtype == "int8" else "u1")
    assert_quantised(y.view(QUANTISED[dtype][0]), reference(x) / LD(scale), dtype)


@pytest.mark.parametrize("dtype", QUANTISED)
@pytest.mark.parametrize("order", "CF")
def test_dynamic_scale(cli, dtype, order):
    x = draw((2, 6, 64))
    x[1, 2] = 0
    y = cli.norm(np.asarray(x, order=order), "--kind", "rms", "--out-dtype", dtype, "--scale-out", "s.npy")
    s = cli.load("s.npy")
    assert (s.dtype, s.shape) == (np.float32, (2, 6, 1))
    want = reference(x)
    largest = np.abs(want).max(-1, keepdims=True)
    assert_close(s, np.where(largest == 0, 1, largest / QUANTISED[dtype][1]))
    assert_quantised(y.view(QUANTISED[dtype][0]), want / wide(s), dtype)
    assert (y[1, 2] == 0).all()


def test_rows_of_extreme_size(cli):
    x = draw((4, 64)) * np.float32([[1e30], [1e-30], [1], [0]])
    y = cli.norm(x, "--kind", "rms", "--eps", 0)
    assert_close(y[:3], reference(x[:3], eps=0))
    assert (y[3] == 0).all()
