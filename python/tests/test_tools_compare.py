"""`compare`: distances and errors in ulp, and the implementations it knows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from truenorm.tools.app import main
from truenorm.tools.ulps import DTYPES, EDGES, Histogram, distance, error, exact_norm

SMALL = ("--rows", "8", "--n", "96")


def compare(capsys: pytest.CaptureFixture[str], a: str, b: str, *options: str) -> dict[str, Any]:
    assert main(["compare", a, b, "--json", *options]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    (result,) = json.loads(captured.out)
    return result


@pytest.mark.parametrize("dtype", DTYPES)
def test_distance(dtype: str) -> None:
    t = DTYPES[dtype]
    one = np.array([1], t)
    following = np.nextafter(one, np.array([2], t))
    tiny = np.array([ml_dtypes.finfo(t).smallest_subnormal], t)
    zero, minus = np.array([0.0], t), np.array([-0.0], t)
    assert distance(one, one) == 0 and distance(one, following) == 1 and distance(following, one) == 1
    assert distance(zero, minus) == 0 and distance(tiny, -tiny) == 2 and distance(minus, tiny) == 1
    nan, inf = np.array([np.nan], t), np.array([np.inf], t)
    assert distance(nan, nan) == 0 and np.isinf(distance(nan, one)) and distance(inf, inf) == 0
    largest = np.array([ml_dtypes.finfo(t).max], t)
    assert distance(largest, inf) == 1
    assert distance(largest, -largest) > 2.0 ** (8 * t.itemsize - 2)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_error(dtype: str) -> None:
    t = DTYPES[dtype]
    y = np.array([1, 1, 0, np.inf, np.nan, np.nan, 1.5], t)
    unit = float(ml_dtypes.finfo(t).eps)
    beyond = np.longdouble(float(ml_dtypes.finfo(t).max)) * 2
    want = np.array([1, 1 + unit / 4, 0, beyond, np.nan, 1, 1.5 - 3 * unit], np.longdouble)
    assert error(y, want).tolist() == [0, 0.25, 0, 0, 0, np.inf, 3]


def test_histogram() -> None:
    h = Histogram(EDGES)
    h.add(np.array([0.0, 0, 1, 2, 3, 4, 5, 2000, np.inf]))
    assert h.counts == [2, 1, 1, 2, 1, 0, 0, 0, 2] and h.size == 9 and h.largest == np.inf
    assert h.share(0) == pytest.approx(2 / 9)


def test_exact_norm_against_float64() -> None:
    x = np.random.default_rng(0).standard_normal((3, 16)).astype(np.float32)
    wide = x.astype(np.float64)
    w, b = wide[0].astype(np.float32), wide[1].astype(np.float32)
    layer = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5) * w + b
    np.testing.assert_allclose(exact_norm(x, w, b, "layer", 1e-5).astype(np.float64), layer, rtol=1e-12, atol=1e-14)
    l2 = wide / np.sqrt((wide * wide).sum(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(exact_norm(x, None, None, "l2", 1e-6).astype(np.float64), l2, rtol=1e-12)
    assert not exact_norm(np.zeros((1, 4), np.float32), None, None, "rms", 0.0).any()


@pytest.mark.parametrize("kind", ["rms", "layer", "l2"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_truenorm_is_where_it_promises(capsys: pytest.CaptureFixture[str], dtype: str, kind: str) -> None:
    result = compare(capsys, "truenorm", "exact", "--dtype", dtype, "--kind", kind, *SMALL)
    assert (result["dtype"], result["shape"]) == (dtype, [8, 96])
    assert sum(result["between"]["counts"].values()) == 8 * 96
    bound = {"f64": 4, "f32": 0.5001, "bf16": 0.501, "f16": 0.501}[dtype]
    assert result["error_from_exact"]["a"]["max"] <= bound
    assert 0.2 < result["error_from_exact"]["a"]["mean"] < 0.5


@pytest.mark.parametrize(
    "name", ["numpy32", "llama", "torch", "truenorm:fast", "truenorm:fast:before_scale", "truenorm:t5"]
)
def test_implementations(capsys: pytest.CaptureFixture[str], name: str) -> None:
    if name == "torch":
        pytest.importorskip("torch")
    result = compare(capsys, name, "exact", *SMALL)
    assert result["a"] == name and result["error_from_exact"]["a"]["max"] < 8
    assert result["error_from_exact"]["b"]["max"] <= 0.5


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_in_its_dtypes(capsys: pytest.CaptureFixture[str], dtype: str, kind: str) -> None:
    pytest.importorskip("torch")
    assert compare(capsys, "torch", "truenorm", "--dtype", dtype, "--kind", kind, *SMALL)["dtype"] == dtype


def test_jax(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jax")
    assert compare(capsys, "jax", "truenorm", *SMALL)["error_from_exact"]["a"]["max"] < 8


def test_llama_is_truenorm_before_scale_in_bf16(capsys: pytest.CaptureFixture[str]) -> None:
    same = compare(capsys, "llama", "truenorm:before_scale", "--dtype", "bf16", *SMALL)
    other = compare(capsys, "llama", "truenorm:once", "--dtype", "bf16", *SMALL)
    assert same["between"]["counts"]["0"] >= 8 * 96 - 2
    assert other["between"]["counts"]["0"] < 0.9 * 8 * 96


def test_files_and_a_function(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine_compare.py").write_text(
        "import numpy as np\n"
        "def norm(x, weight, bias, eps):\n"
        "    h = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)\n"
        "    return (h * weight + bias).astype(x.dtype)\n"
    )
    random = np.random.default_rng(0)
    for name, shape in (("x", (2, 3, 64)), ("w", 64), ("b", 64)):
        np.save(name, random.standard_normal(shape).astype(np.float32))
    np.save("y", random.standard_normal((5, 64)).astype(ml_dtypes.bfloat16))
    options = ["--x", "x.npy", "--x", "y.npy", "--weight", "w.npy", "--bias", "b.npy"]
    assert main(["compare", "mine_compare:norm", "truenorm", "--json", *options]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["x"], first["shape"], first["dtype"]) == ("x.npy", [6, 64], "f32")
    assert (second["x"], second["shape"], second["dtype"]) == ("y.npy", [5, 64], "bf16")
    assert first["error_from_exact"]["b"]["counts"]["≤0.5"] == 6 * 64
    assert main(["compare", "mine_compare:norm", "truenorm", "--x", "x.npy", "--dtype", "f16", *options[4:]]) == 0
    assert "6 x 64 f16" in capsys.readouterr().out


def test_chunks_do_not_change_the_counts(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = compare(capsys, "numpy32", "truenorm", *SMALL)
    monkeypatch.setattr("truenorm.tools.compare.CHUNK", 200)
    parts = compare(capsys, "numpy32", "truenorm", *SMALL)
    for r in (whole, parts):
        for h in (r["between"], *r["error_from_exact"].values()):
            h["mean"] = round(h["mean"], 9)
    assert whole == parts


def test_table_and_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "ulps.png"
    assert main(["compare", "numpy32", "truenorm", *SMALL, "--plot", str(picture)]) == 0
    text = capsys.readouterr().out
    assert "ulp between" in text and "ulp from exact" in text and "largest" in text and "\x1b" not in text
    assert picture.read_bytes().startswith(b"\x89PNG") and list(tmp_path.iterdir()) == [picture]
