"""What results.json holds, and the ratios that are made of it. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from typing import Any

from grid import Cell, find_cell


class BadResults(Exception):
    """The file is not one of run.py's; the message is for the user."""


@dataclass(frozen=True)
class Row:
    """One contender of one cell."""

    contender: str
    role: str
    us: float
    min_us: float
    overhead_us: float | None
    allocates: bool
    error_ulp: dict[str, float]
    note: str


@dataclass(frozen=True)
class Measured:
    """One cell."""

    cell: Cell
    bytes: int
    rows: dict[str, Row]
    absent: dict[str, str]

    def us(self, contender: str) -> float | None:
        row = self.rows.get(contender)
        return row.us if row else None

    @property
    def ours(self) -> Row | None:
        """The C function at its default, grade exact."""
        return self.rows.get("C exact")

    @property
    def ours_best(self) -> Row | None:
        """The fastest C function: grade fast, or a backward with the forward's statistics, counts too."""
        return min((r for name, r in self.rows.items() if name.startswith("C ")), key=lambda r: r.us, default=None)

    @property
    def best_peer(self) -> Row | None:
        return min((r for r in self.rows.values() if r.role == "peer"), key=lambda r: r.us, default=None)

    @property
    def copy_us(self) -> float | None:
        """The faster of the two copies."""
        return min((r.us for r in self.rows.values() if r.role == "limit"), default=None)

    def ratio(self, peer: str) -> float | None:
        """How many times as long as our C function a peer takes."""
        return quotient(self.us(peer), self.ours.us if self.ours else None)

    @property
    def best_ratio(self) -> float | None:
        return self.ratio(self.best_peer.contender) if self.best_peer else None

    @property
    def fastest_ratio(self) -> float | None:
        """The same against our fastest C function, which is still within some ulp."""
        return quotient(self.best_peer.us if self.best_peer else None, self.ours_best.us if self.ours_best else None)

    @property
    def torch_ratio(self) -> float | None:
        """torch's fastest row, compiled or not, against our torch operator."""
        times = [r.us for name, r in self.rows.items() if r.role == "peer" and name.startswith("torch")]
        return quotient(min(times, default=None), self.us("torch op"))

    @property
    def bare_onednn_ratio(self) -> float | None:
        """oneDNN against our C function, each less the time of its call on 16 elements."""
        return quotient(_less_overhead(self.rows.get("oneDNN")), _less_overhead(self.ours))

    @property
    def copy_fraction(self) -> float | None:
        """The time of the copy as a part of ours: 1 is as fast as the memory allows."""
        return quotient(self.copy_us, self.ours.us if self.ours else None)


def _less_overhead(row: Row | None) -> float | None:
    if row is None or row.overhead_us is None or row.us <= 2 * row.overhead_us:
        return None  # mostly overhead: the difference would be noise
    return row.us - row.overhead_us


def quotient(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Of those that are there."""
    logs = [log(value) for value in values if value is not None]
    return exp(sum(logs) / len(logs)) if logs else None


def mean_by(
    cells: Iterable[Measured], key: Callable[[Cell], Any], value: Callable[[Measured], float | None]
) -> dict[Any, float]:
    """Geometric means of a value over groups of cells, in order of appearance."""
    groups: dict[Any, list[float | None]] = {}
    for measured in cells:
        groups.setdefault(key(measured.cell), []).append(value(measured))
    means = {group: geometric_mean(values) for group, values in groups.items()}
    return {group: mean for group, mean in means.items() if mean is not None}


def parse(document: Any) -> list[Measured]:
    """The cells of the contents of results.json. Raises BadResults."""
    try:
        cells = []
        for entry in document["cells"]:
            rows = {r["contender"]: Row(**{name: r[name] for name in Row.__annotations__}) for r in entry["rows"]}
            cells.append(Measured(find_cell(entry["cell"]), entry["bytes"], rows, entry["absent"]))
    except (KeyError, TypeError, ValueError) as error:
        raise BadResults(f"{type(error).__name__}: {error}") from error
    return cells


def load(path: Path) -> tuple[dict[str, Any], list[Measured]]:
    """The document and its cells. Raises BadResults."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BadResults(f"{path}: {error}") from error
    try:
        return document, parse(document)
    except BadResults as error:
        raise BadResults(f"{path}: {error}") from error
