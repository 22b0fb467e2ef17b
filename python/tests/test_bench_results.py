"""bench/: the cells, the settings, the ratios and the page, on results that are made up."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import grid
import pytest
import report
import results

COPY, STREAM = "memcpy", "streaming copy"


def row(contender: str, role: str, us: float, overhead: float | None = None, **more: Any) -> dict[str, Any]:
    return {
        "contender": contender,
        "role": role,
        "us": us,
        "min_us": us / 2,
        "calls": 10,
        "rounds": 15,
        "overhead_us": overhead,
        "allocates": False,
        "error_ulp": {} if role == "limit" else {"y": 0.5},
        "note": "",
        **more,
    }


# Two cells: in the first all peers are slower, in the second one is faster.
DOCUMENT: dict[str, Any] = {
    "machine": {
        "cpu": "A processor",
        "processors": 2,
        "caches": ["L1d 48K"],
        "kernel": "Linux",
        "compiler": "cc 1",
        "python": "3.11",
        "busy": 0.01,
    },
    "started": "2026-01-02 03:04:05 +0000",
    "rounds": 15,
    "sample_us": 200,
    "seconds": 60,
    "versions": {"truenorm": "0.1.0", "torch": "2.13.0"},
    "cells": [
        {
            "cell": "rms/f32/32x4096/forward/1",
            "bytes": 1048576,
            "rows": [
                row("C exact", "ours", 10, 1),
                row("C fast", "ours", 8, 1),
                row("torch op", "ours", 16, 4, allocates=True),
                row("torch", "peer", 40, 8, allocates=True),
                row("torch compile", "peer", 32, 16),
                row("oneDNN", "peer", 20, 9),
                row(COPY, "limit", 5),
                row(STREAM, "limit", 6),
            ],
            "absent": {"ggml": "no such operator", "C kept": "for a backward"},
        },
        {
            "cell": "layer/bf16/512x768/backward/all",
            "bytes": 3932160,
            "rows": [
                row("C exact", "ours", 40, 1),
                row("C kept", "ours", 30, 1),
                row("oneDNN", "peer", 10, 9.5),
                row("torch", "peer", 80, 8),
                row(COPY, "limit", 5),
            ],
            "absent": {"ONNX Runtime": "no training in this package"},
        },
    ],
}


@pytest.fixture
def cells() -> list[results.Measured]:
    return results.parse(DOCUMENT)


# ---- cells and settings -----------------------------------------------------------------------------------


def test_every_cell_is_found_by_its_name() -> None:
    cells = grid.all_cells()
    assert len({cell.name for cell in cells}) == len(cells) > 200
    assert all(grid.find_cell(cell.name) == cell for cell in cells[::17])
    with pytest.raises(ValueError, match="no cell 'rms/f64"):
        grid.find_cell("rms/f64/1x4096/forward/1")


@pytest.mark.parametrize(
    ("name", "streams"),
    [
        ("rms/f32/32x4096/forward/1", 2 * 4),
        ("layer/bf16/32x4096/backward/1", 5 * 2),
        ("add_rms/f16/32x4096/forward/1", 4 * 2),
        ("gated/f32/32x4096/backward/1", 8 * 4),
        ("int8/bf16/32x4096/forward/1", 2 + 1),
    ],
)
def test_bytes_are_those_of_each_operand_once(name: str, streams: int) -> None:
    assert grid.find_cell(name).bytes == streams * 32 * 4096


def test_settings_without_variables_are_the_whole_grid() -> None:
    settings = grid.read_settings({}, processors=2)
    assert settings.whole and settings.cells == tuple(grid.all_cells())


def test_one_processor_measures_one_thread() -> None:
    settings = grid.read_settings({}, processors=1)
    assert settings.whole and {cell.threads for cell in settings.cells} == {"1"}


def test_quick_and_cells_choose() -> None:
    quick = grid.read_settings({"QUICK": "1"}, 2)
    assert 5 < len(quick.cells) < 20 and not quick.whole
    assert {cell.kind for cell in quick.cells} == {"rms", "layer"}
    chosen = grid.read_settings({"CELLS": "^int8/f16/1x4096/"}, 2)
    assert [cell.name for cell in chosen.cells] == ["int8/f16/1x4096/forward/1"] and not chosen.whole
    assert not grid.read_settings({"ROUNDS": "3"}, 2).whole


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"QUICK": "yes"}, "QUICK: expected 1 or 0, got 'yes'"),
        ({"CELLS": "rms("}, r"CELLS: 'rms\(' is no regular expression"),
        ({"CELLS": "nothing"}, "CELLS: 'nothing' matches no cell; names are like rms/f32"),
        ({"ROUNDS": "0"}, "ROUNDS: expected a number from 1 to 1000, got '0'"),
        ({"ROUNDS": "many"}, "ROUNDS: .* got 'many'"),
    ],
)
def test_a_wrong_setting_is_named(env: dict[str, str], message: str) -> None:
    with pytest.raises(grid.SettingError, match=message):
        grid.read_settings(env, 2)


# ---- ratios -----------------------------------------------------------------------------------------------


def test_ratios(cells: list[results.Measured]) -> None:
    first, second = cells
    assert first.best_peer and first.best_peer.contender == "oneDNN"
    assert (first.best_ratio, second.best_ratio) == (2, 0.25)
    assert first.ratio("torch") == 4 and first.ratio("jax") is None
    assert first.torch_ratio == 2 and second.torch_ratio is None
    assert first.copy_fraction == 0.5
    assert first.ours_best and first.ours_best.contender == "C fast"
    assert second.ours_best and second.ours_best.contender == "C kept"


def test_what_the_call_costs_is_taken_from_both(cells: list[results.Measured]) -> None:
    assert cells[0].bare_onednn_ratio == pytest.approx((20 - 9) / (10 - 1))
    assert cells[1].bare_onednn_ratio is None  # 10 us, of which 9.5 are the call


def test_geometric_means(cells: list[results.Measured]) -> None:
    assert results.geometric_mean([2, None, 0.5, 8]) == pytest.approx(2)
    assert results.geometric_mean([None]) is None
    means = results.mean_by(cells, lambda cell: cell.direction, lambda c: c.best_ratio)
    assert means == {"forward": pytest.approx(2), "backward": pytest.approx(0.25)}


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d.pop("cells"),
        lambda d: d["cells"][0].pop("rows"),
        lambda d: d["cells"][0]["rows"][0].pop("us"),
        lambda d: d["cells"][0].update(cell="rms/f32/3x3/forward/1"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, damage: Any, capsys: pytest.CaptureFixture[str]) -> None:
    document = copy.deepcopy(DOCUMENT)
    damage(document)
    path = tmp_path / "results.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    assert report.main([str(path), "--docs", str(tmp_path / "docs")]) == 1
    assert str(path) in capsys.readouterr().err
    assert not (tmp_path / "docs").exists()


# ---- the page ---------------------------------------------------------------------------------------------


def test_page(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps(DOCUMENT), encoding="utf-8")
    assert report.main([str(path), "--docs", str(tmp_path)]) == 0
    lines = (tmp_path / report.PAGE).read_text(encoding="utf-8").splitlines()
    assert (
        "| RMSNorm | f32 | 32 x 4096 | 10 | 8 | oneDNN | 20 | 2.00 | 4.00 | 2.00 | 1.22 | 16 | 2.00 | 0.50 |" in lines
    )
    assert "| `layer/bf16/512x768/backward/all` | 40 | kept 30 | oneDNN | 10 | 0.25 |" in lines
    assert "| **all** | 2 | 0.71 | 0.91 | 2.83 | 2.00 | 0.71 | 1.22 | 0.25 | 1 |" in lines
    assert "## Forward + backward, 2 threads" in lines
    assert "- ggml: no such operator (RMSNorm f32)" in lines
    assert not any("for a backward" in line for line in lines)
    for name in report.IMAGES:
        image = tmp_path / "img" / name
        assert image.read_bytes().startswith(b"\x89PNG") and image.stat().st_size < 150_000


def test_text_orders_by_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps(DOCUMENT), encoding="utf-8")
    assert report.main([str(path), "--text"]) == 0
    out = capsys.readouterr().out
    first = out[: out.index("layer/bf16")]
    order = [COPY, STREAM, "C fast", "C exact", "torch op", "oneDNN", "torch compile", "torch  "]
    places = [first.index("\n  " + name) for name in order]
    assert places == sorted(places)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("value", "shown"), [(None, ""), (0.0512, "0.0512"), (1.234, "1.23"), (12345.6, "12346"), (285636.0, "285636")]
)
def test_numbers(value: float | None, shown: str) -> None:
    assert report.number(value) == shown
