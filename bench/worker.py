"""Measures cells with one number of threads. Started by run.py, which sets the environment of the libraries.

    worker.py THREADS ROUNDS SAMPLE_US FD CELL...

Writes one line of JSON for each cell to the file descriptor FD; the first line names the versions.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from typing import Any, TextIO

import jax
import onnxruntime
import torch

import native
from contenders import copies, ggml, jax_jit, onednn, onnx_runtime, ours, torch_peers
from contenders.base import Absent, Contender, Factory, Role
from grid import OVERHEAD_SHAPE, Cell, find_cell
from problem import Problem, WrongResult, check, make_problem
from timing import Timing, measure

MODULES: tuple[tuple[Role, Any], ...] = (
    ("ours", ours),
    ("peer", torch_peers),
    ("peer", onnx_runtime),
    ("peer", onednn),
    ("peer", ggml),
    ("peer", jax_jit),
    ("limit", copies),
)
REGISTRY: tuple[tuple[str, Role, Factory], ...] = tuple(
    (name, role, factory) for role, module in MODULES for name, factory in module.FACTORIES.items()
)
OVERHEAD_ROUNDS = 7
# Contenders with the errors of their results, and why the others are not there.
Made = tuple[dict[str, tuple[Contender, dict[str, float]]], dict[str, str]]


def versions() -> dict[str, str]:
    lib = native.library()
    return {
        "truenorm": f"{lib.tn_version().decode()} ({lib.tn_isa_name().decode()})",
        "torch": torch.__version__,
        "ONNX Runtime": onnxruntime.__version__,
        "oneDNN": onednn.version(),
        "ggml": version("libggml-python"),
        "jax": jax.__version__,
    }


class Worker:
    def __init__(self, threads: int, rounds: int, sample_us: float) -> None:
        self.threads, self.rounds, self.sample_us = threads, rounds, sample_us
        self.overheads: dict[tuple[str, ...], float | None] = {}

    def make(self, problem: Problem, skip: frozenset[str] = frozenset()) -> Made:
        """The contenders whose results are right, the reasons of the others."""
        torch._dynamo.reset()
        made: dict[str, tuple[Contender, dict[str, float]]] = {}
        absent: dict[str, str] = {}
        for name, role, factory in REGISTRY:
            if name in skip:
                continue
            try:
                contender = factory(problem, self.threads)
                results = {} if role == "limit" else contender.results()
                made[name] = contender, {} if role == "limit" else check(problem, results, contender.tolerance)
            except (Absent, WrongResult) as reason:
                absent[name] = str(reason)
            except Exception as error:  # a peer may fail in its own way
                traceback.print_exc()
                absent[name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        return made, absent

    def time(self, made: Mapping[str, tuple[Contender, Any]], rounds: int) -> dict[str, Timing]:
        calls = {name: contender.call for name, (contender, _) in made.items()}
        return measure(calls, rounds, self.sample_us, settle=self.threads > 1)

    def overhead(self, cell: Cell, names: set[str]) -> dict[str, float | None]:
        """Microseconds of the same call on one row of 16 elements, measured once for each kind of call."""
        key = (cell.kind, cell.dtype, cell.direction)
        missing = {name for name in names if (name, *key) not in self.overheads}
        if missing:
            everyone = {name for name, _, _ in REGISTRY}
            problem = make_problem(cell, OVERHEAD_SHAPE)  # contenders may hold no more than its addresses
            made, _ = self.make(problem, frozenset(everyone - missing))
            times = self.time(made, min(self.rounds, OVERHEAD_ROUNDS))
            for name in missing:
                self.overheads[(name, *key)] = times[name].us if name in times else None
        return {name: self.overheads[(name, *key)] for name in names}

    def run(self, cell: Cell) -> dict[str, Any]:
        problem = make_problem(cell, cell.shape)  # contenders may hold no more than its addresses
        made, absent = self.make(problem)
        times = self.time(made, self.rounds)
        roles = {name: role for name, role, _ in REGISTRY}
        overheads = self.overhead(cell, {name for name in made if roles[name] != "limit"})
        rows = [
            {
                "contender": name,
                "role": roles[name],
                **{key: round(value, 4) for key, value in asdict(times[name]).items()},
                "overhead_us": overheads.get(name),
                "allocates": contender.allocates,
                "error_ulp": {result: round(error, 4) for result, error in errors.items()},
                "note": contender.note,
            }
            for name, (contender, errors) in made.items()
        ]
        return {"cell": cell.name, "bytes": cell.bytes, "rows": rows, "absent": absent}


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # run.py decides
    threads, rounds, sample_us, fd = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    cells = [find_cell(name) for name in sys.argv[5:]]
    torch.set_num_threads(threads)
    torch.set_num_interop_threads(1)
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    worker = Worker(threads, rounds, sample_us)
    out: TextIO
    with os.fdopen(fd, "w", buffering=1) as out:
        out.write(json.dumps({"versions": versions()}) + "\n")
        for cell in cells:
            out.write(json.dumps(worker.run(cell)) + "\n")


if __name__ == "__main__":
    main()
