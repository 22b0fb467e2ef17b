"""examples/llama/claims: the judgements on made-up measurements, the splitting of the text, the keeping of runs."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "examples/llama/claims"))
import corpus
import measures as m
import verdicts as v

import grid
from results import Result, Results, load, smooth


def result(loss=(3.0, 2.0), valid=None, group="curves", kind="rms", depth=2, seed=1, **fields):
    run = grid.Run(group, kind, depth, seed, settings=fields.pop("settings", {}))
    defaults = {"machine": {}, "gradient": np.ones(2), "step_s": np.ones(2), "norm_s": np.ones(2), "layers": {},
                "diverged": False, "seconds": 1.0}  # fmt: skip
    return Result(run=run, loss=np.array(loss), valid=valid or {2: 2.5}, **{**defaults, **fields})


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [([1.5, 9], v.HOLDS), ([np.inf], v.HOLDS), ([1, 0.2], v.FAILS), ([1.5, 1.4], v.UNSEEN), ([0.5, 2], v.UNSEEN),
     ([], v.UNSEEN)],
)  # fmt: skip
def test_times_as_claimed(ratios, verdict):
    assert v.times_as_claimed(ratios) == verdict


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [([0.1, 0.11, 0.09], v.HOLDS), ([-0.1, -0.11, -0.09], v.FAILS), ([0.1, -0.1, 0.05], v.UNSEEN),
     ([0.001, 0.001, 0.001], v.UNSEEN)],
)  # fmt: skip
def test_better_by(differences, verdict):
    assert v.better_by(differences, 0.005) == verdict


def test_drift_is_the_largest_over_steps_averaged_over_layers():
    layers = {
        1: {"in_mean": [0, 1], "in_variance": [4, 1]},
        10: {"in_mean": [6, 1], "in_variance": [4, np.e**3]},
        20: {"in_mean": [2, 1], "in_variance": [4 * np.e, 1]},
    }
    assert m.drift(result(layers=layers)) == pytest.approx(((6 / 2 + 0) / 2, (1 + 3) / 2))
    assert m.drift(result(diverged=True)) == (np.inf, np.inf)


def test_layer_spread():
    layers = {1: {"layer_gradient": [1, 4, 2]}, 2: {"layer_gradient": [1, 1, np.nan]}}
    assert m.layer_spread(result(layers=layers)) == 4
    assert m.layer_spread(result(layers=layers), last=True) == np.inf


def test_working_needs_every_seed():
    runs = [
        result(group="rates", seed=seed, valid={2: valid}, settings={"rate": rate})
        for rate, losses in ((1, (2.0, 2.1)), (2, (2.0, 2.9)), (4, (2.0, np.nan)), (8, (1.0, 1.0)))
        for seed, valid in enumerate(losses)
    ]
    results = Results(Path(), [])
    results.all = runs
    assert m.working(results, "rates", "rate", (1, 2, 4, 8), "rms", 2, 2.5) == [1, 8]
    assert m.working(results, "rates", "rate", (1, 2, 4, 8), "rms", 2, np.inf) == [1, 2, 8]
    assert m.span([1, 8]) == 8 and m.span([]) == 0


def test_gap_is_taken_where_the_training_loss_is_the_same():
    loss = np.linspace(3, 1, 401)
    slow, fast = (result(loss=loss ** (1 / p), valid={1: 4.0, 400: 2.0}) for p in (1, 2))
    level = m.common_train_loss([slow, fast])
    assert level == pytest.approx(smooth(slow.loss, m.SMALL_WINDOW)[-1])
    middle = 401 - (m.SMALL_WINDOW - 1) / 2
    assert m.gap_at(slow, level) == pytest.approx(4 - 2 * (middle - 1) / 399 - level)
    assert m.gap_at(fast, level + 1) > m.gap_at(slow, level)


def test_smooth():
    assert smooth(np.array([1.0, 3, 5, 7]), 2) == pytest.approx([1, 2, 4, 6])


def test_split_of_the_text():
    lines = [f"{i:05} " + "word " * 20 + "\n" for i in range(5000)]
    parts = corpus.split("".join(lines))
    train, valid = parts["train.txt"].decode(), parts["valid.txt"].decode()
    assert sorted((train + valid).splitlines(keepends=True)) == lines
    assert 0.08 < len(valid) / len(train + valid) < 0.12
    single, pair = corpus.entropies(b"abababab" * 50)
    assert single == pytest.approx(np.log(2)) and pair == pytest.approx(0, abs=0.01)


def test_other_text_is_refused(tmp_path):
    module = tmp_path / corpus.MODULE
    module.parent.mkdir()
    module.write_text("bible = Bible('''In the beginning''', {'key': 'value'})")
    with pytest.raises(SystemExit, match=r"train\.txt has the SHA-256 \w+, not 0b48"):
        corpus.write(tmp_path, tmp_path / "text")
    assert list((tmp_path / "text").iterdir()) == []


PROGRAM = """#!/bin/sh
while [ "$1" != --out ]; do shift; done
mkdir "$2" && echo once >>"$2.log"
echo '{"parameters":1}' >"$2/metrics.jsonl"
echo '{"step":1,"loss":null,"gradient":1,"step_s":1,"norm_s":1}' >>"$2/metrics.jsonl"
echo '{"end":"diverged","step":0}' >>"$2/metrics.jsonl"
exit STATUS
"""


def test_runs_are_kept_while_program_and_options_are_the_same(tmp_path):
    program = tmp_path / "program"
    program.write_text(PROGRAM.replace("STATUS", "3"))
    program.chmod(0o755)
    run = grid.Run("curves", "none", 2, 1, (("--steps", 1),))
    log = tmp_path / f"{run.name}.log"
    for _ in range(2):
        grid.Runner(program, tmp_path, tmp_path).execute_all([run], 1, "training")
    assert log.read_text() == "once\n"
    loaded = load(tmp_path, run)
    assert loaded.diverged and loaded.final_loss == np.inf and np.isnan(loaded.loss[0])
    other = grid.Run("curves", "none", 2, 1, (("--steps", 2),))
    grid.Runner(program, tmp_path, tmp_path).execute_all([other], 1, "training")
    program.write_text(PROGRAM.replace("STATUS", "0"))
    grid.Runner(program, tmp_path, tmp_path).execute_all([other], 1, "training")
    assert log.read_text() == "once\n" * 3
    assert json.loads((tmp_path / run.name / "run.json").read_text())["seconds"] >= 0


def test_a_run_that_fails_ends_it_all(tmp_path):
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho 'llama: the disk is full' >&2\nexit 2\n")
    program.chmod(0o755)
    runner = grid.Runner(program, tmp_path, tmp_path)
    with pytest.raises(RuntimeError, match="curves-none-2-1: llama: the disk is full"):
        runner.execute_all([grid.Run("curves", "none", 2, 1)], 1, "training")


@pytest.mark.parametrize("plan", [grid.FULL, grid.QUICK])
def test_runs_have_names_of_their_own(plan):
    runs = [*grid.training_runs(plan), *grid.timing_runs(plan)]
    assert len({run.name for run in runs}) == len(runs)
