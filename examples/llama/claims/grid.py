"""Which models are trained, and the running of them: several at a time, finished ones not again."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

KINDS = ["none", "layer", "rms", "prms:0.25"]


@dataclass(frozen=True)
class Run:
    """One call of `llama train`; the fields say where it belongs in the tables."""

    group: str
    kind: str
    depth: int
    seed: int
    options: tuple = ()  # further options, each a pair
    settings: dict = field(default_factory=dict, hash=False, compare=False)  # what the group varies: a rate, a gain

    @property
    def name(self):
        varied = "".join(f"-{key}{value}" for key, value in self.settings.items())
        return f"{self.group}-{self.kind}-{self.depth}-{self.seed}{varied}".replace(":", "")

    def arguments(self):
        pairs = [("--norm", self.kind), ("--layers", self.depth), ("--seed", self.seed), *self.options]
        return [str(word) for pair in pairs for word in pair]


@dataclass(frozen=True)
class Plan:
    """The sizes of the experiment."""

    depths: tuple
    seeds: int
    steps: int
    rates: tuple
    rate_depths: tuple
    gains: tuple
    gain_depth: int
    search_seeds: int  # of the searches over rates and gains
    search_steps: int
    small_text: int  # bytes
    small_steps: int
    small_depth: int
    place_depth: int
    widths: tuple  # of the timing
    rounds: int
    every: int  # steps between the lines about layers


FULL = Plan(
    depths=(2, 6, 12), seeds=3, steps=600,
    rates=(2e-3, 4e-3, 8e-3, 16e-3, 32e-3, 64e-3, 128e-3), rate_depths=(2, 12),
    gains=(0.0625, 0.25, 0.5, 1, 2, 4, 8), gain_depth=6, search_seeds=2, search_steps=150,
    small_text=32768, small_steps=1000, small_depth=4, place_depth=6, widths=(64, 256, 512), rounds=4, every=20,
)  # fmt: skip
QUICK = Plan(
    depths=(2, 4), seeds=2, steps=60,
    rates=(4e-3, 32e-3), rate_depths=(2,),
    gains=(0.25, 1, 4), gain_depth=2, search_seeds=1, search_steps=40,
    small_text=4096, small_steps=120, small_depth=2, place_depth=2, widths=(64, 128), rounds=2, every=10,
)  # fmt: skip


def training_runs(p):
    """All but the timing."""
    seeds = range(1, p.seeds + 1)
    search = range(1, p.search_seeds + 1)
    short = (("--steps", p.search_steps), ("--log-every", p.search_steps))
    curve = (("--steps", p.steps), ("--log-every", p.every), ("--valid-every", p.steps // 6))
    small = (("--steps", p.small_steps), ("--text-bytes", p.small_text), ("--log-every", p.small_steps))
    for depth in sorted(p.depths, reverse=True):  # the long ones first
        yield from (Run("curves", kind, depth, seed, curve) for kind in KINDS for seed in seeds)
    for placement in ("pre", "post", "sandwich"):
        for qk_norm in ("none", "rms"):
            options = (("--placement", placement), ("--qk-norm", qk_norm), *short)
            settings = {"placement": placement, "qk": qk_norm}
            yield from (Run("place", k, p.place_depth, s, options, settings) for k in ("layer", "rms") for s in search)
    for depth in p.rate_depths:
        for rate in p.rates:
            options, settings = (("--rate", rate), *short), {"rate": rate}
            yield from (Run("rates", kind, depth, seed, options, settings) for kind in KINDS for seed in search)
    for gain in p.gains:
        options, settings = (("--gain", gain), *short), {"gain": gain}
        yield from (Run("gains", kind, p.gain_depth, seed, options, settings) for kind in KINDS for seed in search)
    options = (*small, ("--valid-every", p.small_steps // 30))
    yield from (Run("small", kind, p.small_depth, seed, options) for kind in KINDS for seed in seeds)


TIMED = ["none", "layer", "rms", "prms:0.25", "prms:0.0625"]


def timing_runs(p):
    """Short trainings, one after the other and the kinds in turn, so that what slows the machine slows all."""
    for width in p.widths:
        steps = max(6, 2048 // width)
        options = (("--width", width), ("--hidden", width * 11 // 4), ("--steps", steps), ("--log-every", steps))
        for number in range(p.rounds):
            yield from (Run("time", kind, 2, 1, options, {"width": width, "round": number}) for kind in TIMED)


class Runner:
    """Runs the program in folders under `work`. Each finished run leaves run.json, which says what was run."""

    def __init__(self, llama, texts, work):
        self.llama, self.texts, self.work = Path(llama).resolve(), Path(texts).resolve(), Path(work)
        self.program = hashlib.sha256(self.llama.read_bytes()).hexdigest()
        self.work.mkdir(parents=True, exist_ok=True)

    def key(self, run):
        return {"program": self.program, "arguments": run.arguments()}

    def finished(self, run):
        try:
            return json.loads((self.work / run.name / "run.json").read_text())["key"] == self.key(run)
        except (OSError, ValueError, KeyError):
            return False

    def execute(self, run):
        if self.finished(run):
            return
        folder = self.work / run.name
        shutil.rmtree(folder, ignore_errors=True)
        texts = ["--text", self.texts / "train.txt", "--valid", self.texts / "valid.txt"]
        started = time.monotonic()
        done = subprocess.run(
            [self.llama, "train", *texts, "--out", folder, "--checkpoints", "0", *run.arguments()],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )
        if done.returncode not in (0, 3):  # 3: diverged, which is a result
            raise RuntimeError(f"{run.name}: {done.stderr.strip() or f'status {done.returncode}'}")
        record = {"key": self.key(run), "seconds": time.monotonic() - started}
        (folder / "run.json").write_text(json.dumps(record))

    def execute_all(self, runs, jobs, what):
        runs = list(runs)
        progress = Progress(what, len(runs))
        with ThreadPoolExecutor(jobs) as pool:
            waiting = [pool.submit(self.execute, run) for run in runs]
            try:
                for done in as_completed(waiting):
                    done.result()
                    progress.advance()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return runs


class Progress:
    """A bar on a terminal, ten lines elsewhere."""

    def __init__(self, what, total):
        self.what, self.total, self.done, self.start = what, total, 0, time.monotonic()
        self.terminal = sys.stderr.isatty()

    def advance(self):
        self.done += 1
        left = (time.monotonic() - self.start) / self.done * (self.total - self.done)
        text = f"{self.what}: {self.done}/{self.total} runs, {left / 60:.1f} min left"
        if self.terminal:
            filled = self.done * 30 // self.total
            end = "\n" if self.done == self.total else ""
            print(f"\r[{'#' * filled}{'-' * (30 - filled)}] {text}\x1b[K", end=end, file=sys.stderr, flush=True)
        elif self.done * 10 // self.total != (self.done - 1) * 10 // self.total:
            print(text, flush=True)
