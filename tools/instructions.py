#!/usr/bin/env python3
"""Count the instructions of a few fixed calls with callgrind, and hold them against a file.

    tools/instructions.py BUILD           compare with tests/instructions.txt; exit 1 where a count is off
    tools/instructions.py BUILD --update  write the counts there, for a change that is meant

Times differ from machine to machine and from run to run, these counts do not; so CI can hold them. They are those of
AVX2, the best that valgrind knows, and of one compiler: with another, or without valgrind, exit 77 (skipped).
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

EXPECTED = Path(__file__).parent.parent / "tests" / "instructions.txt"
TOLERANCE = 0.03  # of the count: what another libc or another alignment may move
SKIPPED = 77


def compiler(build: Path) -> str:
    """Return the compiler of a build folder and its major version, as `GNU 12`."""
    for found in (build / "CMakeFiles").glob("*/CMakeCCompiler.cmake"):
        text = found.read_text()
        name = re.search(r'CMAKE_C_COMPILER_ID "(\w+)"', text)
        version = re.search(r'CMAKE_C_COMPILER_VERSION "(\d+)', text)
        if name and version:
            return f"{name[1]} {version[1]}"
    raise SystemExit(f"instructions: {build} is not a CMake build folder")


def count(program: Path, case: str) -> int:
    """Return how many instructions the library's function takes in one call."""
    function = "tn_norm_backward" if "backward" in case else "tn_norm_forward"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        command = ["valgrind", "--tool=callgrind", f"--toggle-collect={function}", f"--callgrind-out-file={out}"]
        done = subprocess.run(
            [*command, program, case], env={**os.environ, "TN_ISA": "avx2"}, capture_output=True, text=True, check=False
        )
        found = re.search(r"^(?:summary|totals): (\d+)", out.read_text() if out.exists() else "", re.MULTILINE)
        if done.returncode or not found:
            raise SystemExit(f"instructions: {case}: {done.stderr.strip().splitlines()[-1:]}")
        return int(found[1])


def read_expected() -> tuple[str, dict[str, int]]:
    """Return the compiler and the counts of the file."""
    lines = [line.split() for line in EXPECTED.read_text().splitlines() if not line.startswith("#")]
    return " ".join(lines[0][1:]), {name: int(value) for name, value in lines[1:]}


def write_expected(compiled_by: str, counts: dict[str, int]) -> None:
    """Replace the file."""
    text = "# Instructions of one call on AVX2, by tools/instructions.py BUILD --update.\n"
    text += f"compiler {compiled_by}\n" + "".join(f"{name} {value}\n" for name, value in counts.items())
    beside = EXPECTED.with_suffix(".new")
    beside.write_text(text)
    beside.replace(EXPECTED)


def compare(counts: dict[str, int], expected: dict[str, int]) -> int:
    """Print every case; return how many are off."""
    off = 0
    for name in sorted(counts.keys() | expected.keys()):
        now, before = counts.get(name), expected.get(name)
        change = now / before - 1 if now and before else float("inf")
        wrong = abs(change) > TOLERANCE
        off += wrong
        print(f"{name:28} {before or 0:>10} -> {now or 0:>10} {change:+8.1%}{'  <-' if wrong else ''}")
    return off


def main() -> int:
    """Count, then compare or update."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, help="a CMake build folder with the tests")
    parser.add_argument("--update", action="store_true", help="write the counts instead of comparing")
    args = parser.parse_args()
    if not shutil.which("valgrind"):
        print("instructions: skipped, there is no valgrind")
        return SKIPPED
    compiled_by = compiler(args.build)
    if not args.update and compiled_by != read_expected()[0]:
        print(f"instructions: skipped, the counts are for {read_expected()[0]}, this is {compiled_by}")
        return SKIPPED
    program = args.build / "tests" / "count_calls"
    cases = subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()
    counts = {case: count(program, case) for case in cases}
    if args.update:
        write_expected(compiled_by, counts)
        return 0
    off = compare(counts, read_expected()[1])
    print(f"{len(counts) - off} passed, {off} failed")
    if off:
        print("If that is meant: tools/instructions.py BUILD --update, and say why in the commit.")
    return int(off > 0)


if __name__ == "__main__":
    sys.exit(main())
