"""Train the models, judge the claims, write claims.md and its pictures.

python examples/llama/claims LLAMA --work FOLDER --out FOLDER [--quick]
"""

import argparse
import os
import sys
import sysconfig
import time
from pathlib import Path

import corpus

import grid
import report
from results import Results


def main():
    parser = argparse.ArgumentParser(prog="claims", description="Measure what norm layers do in a small Llama.")
    parser.add_argument("llama", type=Path, help="the program")
    parser.add_argument("--work", type=Path, required=True, help="folder for the text and the runs; runs are kept")
    parser.add_argument("--out", type=Path, required=True, help="gets claims.md and img/claims-*.png")
    parser.add_argument("--quick", action="store_true", help="a few small runs: does everything work?")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="runs at a time (one a core)")
    args = parser.parse_args()
    plan = grid.QUICK if args.quick else grid.FULL

    started = time.monotonic()
    texts = args.work / "text"
    corpus.write(sysconfig.get_paths()["purelib"], texts)
    runner = grid.Runner(args.llama, texts, args.work / ("quick" if args.quick else "full"))
    runs = runner.execute_all(grid.training_runs(plan), args.jobs, "training")
    runs += runner.execute_all(grid.timing_runs(plan), 1, "timing")
    entropies = corpus.entropies((texts / "train.txt").read_bytes())
    verdicts = report.write(Results(runner.work, runs), plan, entropies, args.out)
    width = max(len(v.claim) for v in verdicts)
    for v in verdicts:
        print(f"{v.claim:{width}}  {v.verdict}")
    print(f"{args.out / 'claims.md'} written, {(time.monotonic() - started) / 60:.1f} min")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("claims: interrupted; the finished runs are kept")
    except (OSError, RuntimeError) as error:
        sys.exit(f"claims: {error}")
