#!/usr/bin/env python3
"""Check who includes whom, and that no file has grown past 500 lines.

src/ has five layers, api -> run -> kernels -> simd -> base; a file includes its own layer and lower ones.
Intrinsics come in through src/simd/vec_*.h alone. The headers of src/kernels are code that each instruction set
compiles anew, so that but for kernels.h only src/kernels, tests/test_vec* and tests/vec include them. cli/, bench/ and
examples/ are users: they see truenorm.h and their own headers.

    tools/check_layers.py [ROOT]
"""

import re
import sys
from pathlib import Path

LAYERS = ["base", "simd", "kernels", "run", "api"]
USERS = ["cli", "bench", "examples"]
INTRINSICS = {"immintrin.h", "x86intrin.h", "emmintrin.h", "arm_neon.h", "arm_fp16.h"}
MAX_LINES = 500
C_SUFFIXES = {".c", ".h", ".inc"}
SUFFIXES = C_SUFFIXES | {".py", ".sh"}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def resolve(root, source, name):
    """The project file that `#include "name"` (or <name>) in source means, or None."""
    folders = [source.parent, root / "src", root / "include"]
    if source.is_relative_to(root / "tests"):
        folders += [root / "tests", root / "cli"]
    for folder in folders:
        found = (folder / name).resolve()
        if found.is_file() and found.is_relative_to(root):
            return found.relative_to(root)
    return None


def check_include(source, target):
    """What is wrong with the file source including the file target (both relative to the root), or None."""
    if target.parts[0] == "include":
        return None
    top = source.parts[0]
    if top in USERS:
        return None if target.parts[0] == top else "sees truenorm.h and its own headers only"
    if target.parts[:2] == ("src", "kernels") and target.name != "kernels.h":
        of_kernels = source.parts[:2] == ("src", "kernels")
        of_vec_test = top == "tests" and (source.name.startswith("test_vec") or source.parts[1] == "vec")
        if not of_kernels and not of_vec_test:
            return "only src/kernels, tests/test_vec* and tests/vec may"
    if top == "include":
        return "the public header stands alone"
    if top == "src":
        if target.parts[0] != "src":
            return "src includes src and the public header only"
        if LAYERS.index(target.parts[1]) > LAYERS.index(source.parts[1]):
            return f"{source.parts[1]} is below {target.parts[1]}"
    return None


def check_file(root, path):
    source = path.relative_to(root)
    text = path.read_text(encoding="utf-8")
    lines = text.count("\n")
    if lines > MAX_LINES:
        yield f"{source}: {lines} lines, more than {MAX_LINES}"
    if path.suffix not in C_SUFFIXES:
        return
    if source.parts[0] == "src" and (len(source.parts) != 3 or source.parts[1] not in LAYERS):
        yield f"{source}: not in a layer ({', '.join(LAYERS)})"
        return
    for match in INCLUDE.finditer(text):
        bracket, name = match.groups()
        where = f"{source}:{text.count(chr(10), 0, match.start(2)) + 1}"
        if name in INTRINSICS:
            if source.parts[:2] != ("src", "simd") or not source.name.startswith("vec_"):
                yield f"{where}: <{name}>: only src/simd/vec_*.h may"
            continue
        target = resolve(root, path, name)
        if target is None:
            if bracket == '"':
                yield f'{where}: "{name}": no such file'
            continue
        wrong = check_include(source, target)
        if wrong:
            yield f"{where}: {target}: {wrong}"


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent).resolve()
    files = [
        path
        for top in ("include", "src", *USERS, "tests", "tools", "scripts")
        for path in sorted((root / top).rglob("*"))
        if path.suffix in SUFFIXES and path.is_file()
    ]
    if not any(path.is_relative_to(root / "src") for path in files):
        print(f"{root}: no sources found", file=sys.stderr)
        return 2
    problems = [problem for path in files for problem in check_file(root, path)]
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"layers: {len(files)} files, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
