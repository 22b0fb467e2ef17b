"""The speed comparison: measures the cells in worker processes, writes results.json, then the report.

    run.py OUTPUT_FOLDER

The environment chooses: QUICK=1 (a few cells), CELLS=REGEX (the cells it matches), ROUNDS (9). A run of the whole grid
replaces results.json and docs/; any other writes partial.json and prints. scripts/bench.sh builds what this needs and
starts it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

import machine
import report
from grid import Cell, SettingError, Settings, read_settings, usable_processors

HERE = Path(__file__).resolve().parent
LIMITED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "DPCPP_CPU_NUM_CUS", "TN_NUM_THREADS")
# A cell that takes longer than this has hung.
CELL_SECONDS = 600
# More processors than this at work before the start is worth a warning.
BUSY = 0.2


class Failed(Exception):
    """The run cannot go on; the message is for the user."""


def worker_environment(folder: Path, threads: int) -> dict[str, str]:
    """Every library gets that many threads, and finds its parts."""
    libraries = Path(sys.prefix, "lib")
    xla = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1" if threads == 1 else ""
    return {
        **os.environ,
        **{name: str(threads) for name in LIMITED},
        "XLA_FLAGS": xla,
        "JAX_PLATFORMS": "cpu",
        "LD_LIBRARY_PATH": str(libraries),  # oneDNN's and its runtimes'
        "OCL_ICD_FILENAMES": str(libraries / "libintelocl.so"),  # without it oneDNN finds no CPU
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TN_BENCH_CALLS": str(folder / "libcalls.so"),
    }


class Worker:
    """A worker process on as many processors as it has threads."""

    def __init__(self, folder: Path, cells: list[Cell], settings: Settings) -> None:
        processors = sorted(os.sched_getaffinity(0))
        threads = 1 if cells[0].threads == "1" else len(processors)
        chosen = set(processors[-threads:])
        receive, send = os.pipe()
        arguments = [str(threads), str(settings.rounds), str(settings.sample_us), str(send)]
        command = [sys.executable, str(HERE / "worker.py"), *arguments, *(cell.name for cell in cells)]
        self.log_path = folder / f"worker-{cells[0].threads}.log"
        with self.log_path.open("a", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                command,
                env=worker_environment(folder, threads),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[send],
                preexec_fn=lambda: os.sched_setaffinity(0, chosen),
            )
        os.close(send)
        self.lines = os.fdopen(receive, encoding="utf-8")

    def messages(self) -> Iterator[dict[str, Any]]:
        """What it reports, until it ends. A cell that hangs ends it."""
        while True:
            signal.alarm(CELL_SECONDS)
            try:
                line = self.lines.readline()
            finally:
                signal.alarm(0)
            if not line.endswith("\n"):
                return
            yield json.loads(line)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.lines.close()


class _HungError(Exception):
    pass


def _hung(*_: object) -> None:
    raise _HungError


def measure(folder: Path, cells: list[Cell], settings: Settings, progress: tqdm[Any]) -> Iterator[dict[str, Any]]:
    """The workers' messages. A worker that dies takes its cell along; another one goes on with the rest.

    Raises Failed if a worker dies before its first cell.
    """
    signal.signal(signal.SIGALRM, _hung)
    left = list(cells)
    while left:
        worker = Worker(folder, left, settings)
        started = False
        try:
            for message in worker.messages():
                yield message
                if "cell" in message:
                    left.pop(0)
                started = True
                if left:
                    progress.set_description(left[0].name)
            fate = f"ended with status {worker.process.wait()}"
        except _HungError:
            fate = f"took more than {CELL_SECONDS} s"
        finally:
            worker.stop()
        if not started:
            tail = worker.log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
            raise Failed("\n".join([*tail, f"a worker could not start; see {worker.log_path}"]))
        if left:
            lost = left.pop(0)
            yield {"cell": lost.name, "bytes": lost.bytes, "rows": [], "absent": {"(all)": f"the worker {fate}"}}


def plain_line(message: dict[str, Any], done: int, total: int) -> str:
    best = {role: min((r["us"] for r in message["rows"] if r["role"] == role), default=0) for role in ("ours", "peer")}
    return f"[{done}/{total}] {message['cell']}: ours {best['ours']:.2f} us, best peer {best['peer']:.2f} us"


def run(folder: Path, settings: Settings) -> dict[str, Any]:
    """The contents of results.json."""
    for log in folder.glob("worker-*.log"):
        log.unlink()
    results: dict[str, Any] = {
        "machine": machine.describe(),
        "started": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "rounds": settings.rounds,
        "sample_us": settings.sample_us,
        "versions": {},
        "cells": [],
    }
    busy = results["machine"]["busy"]
    if busy > BUSY:
        print(f"bench: other programs keep {busy} processors busy; the times will be off", file=sys.stderr)
    terminal = sys.stderr.isatty()
    begin = time.monotonic()
    total = len(settings.cells)
    with tqdm(total=total, disable=not terminal, unit="cell", dynamic_ncols=True) as progress:
        for threads in ("1", "all"):
            cells = [cell for cell in settings.cells if cell.threads == threads]
            for message in measure(folder, cells, settings, progress):
                results["versions"] |= message.get("versions", {})
                if "cell" in message:
                    results["cells"].append(message)
                    progress.update()
                    if not terminal:
                        print(plain_line(message, len(results["cells"]), total), flush=True)
    results["seconds"] = round(time.monotonic() - begin)
    return results


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        settings = read_settings(os.environ, usable_processors())
        results = run(folder, settings)
    except (SettingError, Failed) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2 if isinstance(error, SettingError) else 1
    except KeyboardInterrupt:
        print("\nbench: interrupted; the last results are as they were", file=sys.stderr)
        return 130
    path = folder / ("results.json" if settings.whole else "partial.json")
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    beside.replace(path)
    print(f"bench: {len(results['cells'])} cells in {results['seconds']} s: {path}")
    return report.main([str(path)] if settings.whole else [str(path), "--text"])


if __name__ == "__main__":
    sys.exit(main())
