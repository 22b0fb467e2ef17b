"""What the runs measured, as arrays."""

import json
from dataclasses import dataclass

import numpy as np

LAST = 0.1  # the training loss at the end is the mean over this share of the steps


@dataclass
class Result:
    run: object
    machine: dict  # "openblas", "isa", "parameters"
    loss: np.ndarray  # of each step; NaN where the run diverged
    gradient: np.ndarray
    step_s: np.ndarray
    norm_s: np.ndarray
    valid: dict  # step: loss
    layers: dict  # step: {"layer_gradient": [...], "in_mean": [...], ...}
    diverged: bool
    seconds: float  # of the whole run

    @property
    def kind(self):
        return self.run.kind

    @property
    def final_loss(self):
        return np.inf if self.diverged else smooth_end(self.loss)

    @property
    def final_valid(self):
        return np.inf if self.diverged else self.valid[max(self.valid)]

    def series(self, name):
        """Steps, and an array of them by layers."""
        steps = sorted(self.layers)
        return np.array(steps), np.array([self.layers[s][name] for s in steps], dtype=float)


def smooth_end(loss):
    return float(np.mean(loss[-max(1, int(LAST * len(loss))) :]))


def smooth(loss, window):
    """The mean over the last `window` steps, or those there are."""
    total = np.cumsum(np.insert(loss, 0, 0.0))
    ends = np.arange(1, len(loss) + 1)
    starts = np.maximum(0, ends - window)
    return (total[ends] - total[starts]) / (ends - starts)


def number(value):
    return np.nan if value is None else value


def load(work, run):
    lines = [json.loads(line) for line in (work / run.name / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    layers = ("layer_gradient", "in_mean", "in_variance", "stream_mean", "stream_variance")

    def column(name):
        return np.array([number(line[name]) for line in steps], dtype=float)

    return Result(
        run=run,
        machine=lines[0],
        loss=column("loss"),
        gradient=column("gradient"),
        step_s=column("step_s"),
        norm_s=column("norm_s"),
        valid={line["step"]: number(line["valid"]) for line in lines if "valid" in line},
        layers={s["step"]: {n: [number(v) for v in s[n]] for n in layers} for s in steps if "in_mean" in s},
        diverged=lines[-1]["end"] == "diverged",
        seconds=json.loads((work / run.name / "run.json").read_text())["seconds"],
    )


class Results:
    def __init__(self, work, runs):
        self.all = [load(work, run) for run in runs]

    def select(self, group, kind=None, depth=None, **settings):
        """The seeds of one setting."""
        return [
            r
            for r in self.all
            if r.run.group == group
            and kind in (None, r.kind)
            and depth in (None, r.run.depth)
            and all(r.run.settings.get(k) == v for k, v in settings.items())
        ]
