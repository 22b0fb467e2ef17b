"""What is measured: the cells, and how a run is chosen by the environment. Standard library only."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal, get_args

Kind = Literal["rms", "layer", "add_rms", "gated", "gated_after", "int8"]
DType = Literal["f32", "bf16", "f16"]
Direction = Literal["forward", "backward"]
Threads = Literal["1", "all"]

KINDS: tuple[Kind, ...] = get_args(Kind)
DTYPES: tuple[DType, ...] = get_args(DType)
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
ITEM_SIZE: Mapping[str, int] = {"f32": 4, "bf16": 2, "f16": 2}


@dataclass(frozen=True)
class Shape:
    """Rows of n elements. ``parts``: x is the first ``rows[-1]`` of so many vectors of each token (a QKV buffer)."""

    rows: tuple[int, ...]
    n: int
    parts: int = 0

    @property
    def name(self) -> str:
        return f"{prod(self.rows)}x{self.n}" + ("-view" if self.parts else "")

    @property
    def row_count(self) -> int:
        return prod(self.rows)


# The view is the queries of 128 tokens in a packed buffer: 32 query heads, 8 key and 8 value heads.
SHAPES = (
    Shape((1,), 4096),
    Shape((1,), 8192),
    Shape((256,), 128),
    Shape((128, 32), 128, parts=48),
    Shape((32,), 768),
    Shape((32,), 4096),
    Shape((512,), 768),
    Shape((2048,), 4096),
    Shape((64,), 65536),
    Shape((100000,), 64),
)
# The problem whose time is the overhead of a call.
OVERHEAD_SHAPE = Shape((1,), 16)

_ALL = tuple(shape.name for shape in SHAPES)
_TRAINING = tuple(shape.name for shape in SHAPES if shape.row_count > 1)
_SOME = ("1x4096", "32x4096", "512x768", "2048x4096", "100000x64")
_FEW = ("32x4096", "512x768", "2048x4096")
# Which shapes each kind has; several threads are measured where a call has work for them.
GRID: Mapping[Direction, Mapping[Kind, tuple[str, ...]]] = {
    "forward": {"rms": _ALL, "layer": _ALL, "add_rms": _SOME, "gated": _SOME, "gated_after": _FEW, "int8": _SOME},
    "backward": {"rms": _TRAINING, "layer": _TRAINING, "add_rms": _FEW, "gated": _FEW},
}
THREADED_ELEMENTS = 32 * 4096

QUICK = re.compile(r"^((rms|layer)/(f32|bf16)/(1x4096|32x4096|512x768)/forward/1|rms/f32/512x768/backward/1)$")


@dataclass(frozen=True)
class Cell:
    kind: Kind
    dtype: DType
    shape: Shape
    direction: Direction
    threads: Threads

    @property
    def name(self) -> str:
        """What CELLS is matched with."""
        return f"{self.kind}/{self.dtype}/{self.shape.name}/{self.direction}/{self.threads}"

    @property
    def bytes(self) -> int:
        """Bytes of the rows that a call reads and writes, each operand of each pass once; parameters left out."""
        size = ITEM_SIZE[self.dtype]
        # x, residual or gate, y, sum; int8: x and one byte
        streams = {"rms": 2, "layer": 2, "add_rms": 4, "gated": 3, "gated_after": 3, "int8": 1}[self.kind] * size
        if self.kind == "int8":
            streams += 1
        if self.direction == "backward":  # x, dy, dx; dsum and the residual; the gate and its gradient
            streams += {"rms": 3, "layer": 3, "add_rms": 5, "gated": 5}[self.kind] * size
        return streams * self.shape.row_count * self.shape.n


def all_cells() -> list[Cell]:
    shapes = {shape.name: shape for shape in SHAPES}
    cells = []
    for threads in get_args(Threads):
        for direction, kinds in GRID.items():
            for kind, names in kinds.items():
                for dtype in DTYPES:
                    for name in names:
                        shape = shapes[name]
                        if threads == "1" or shape.row_count * shape.n >= THREADED_ELEMENTS:
                            cells.append(Cell(kind, dtype, shape, direction, threads))
    return cells


def find_cell(name: str) -> Cell:
    for cell in all_cells():
        if cell.name == name:
            return cell
    raise ValueError(f"there is no cell {name!r}")


class SettingError(Exception):
    """A variable of the environment that makes no sense; the message is for the user."""


@dataclass(frozen=True)
class Settings:
    cells: tuple[Cell, ...]
    whole: bool  # the full grid: its results replace the last ones
    rounds: int
    sample_us: float


def read_settings(env: Mapping[str, str], processors: int) -> Settings:
    """QUICK, CELLS and ROUNDS. Raises SettingError."""
    quick = env.get("QUICK", "")
    if quick not in ("", "0", "1"):
        raise SettingError(f"QUICK: expected 1 or 0, got {quick!r}")
    rounds = env.get("ROUNDS", "9")
    if not re.fullmatch(r"[0-9]{1,4}", rounds) or not 1 <= int(rounds) <= 1000:
        raise SettingError(f"ROUNDS: expected a number from 1 to 1000, got {rounds!r}")
    pattern = env.get("CELLS", "")
    try:
        wanted = re.compile(pattern) if pattern else QUICK if quick == "1" else re.compile("")
    except re.error as error:
        raise SettingError(f"CELLS: {pattern!r} is no regular expression: {error}") from None
    available = [cell for cell in all_cells() if processors > 1 or cell.threads == "1"]
    cells = tuple(cell for cell in available if wanted.search(cell.name))
    if not cells:
        raise SettingError(f"CELLS: {pattern!r} matches no cell; names are like {available[0].name}")
    whole = len(cells) == len(available) and quick != "1" and int(rounds) >= 9
    return Settings(cells, whole, int(rounds), 200.0)


def usable_processors() -> int:
    return len(os.sched_getaffinity(0))


def group_names(cells: Iterable[Cell]) -> list[tuple[Direction, Threads]]:
    """The pairs of direction and threads, in order."""
    return list(dict.fromkeys((cell.direction, cell.threads) for cell in cells))


def main() -> int:
    """Lists the cells that the environment chooses."""
    try:
        settings = read_settings(os.environ, usable_processors())
    except SettingError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    print("\n".join(cell.name for cell in settings.cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
