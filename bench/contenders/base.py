"""What a contender is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Literal

from problem import Problem

Role = Literal["ours", "peer", "limit"]


class Absent(Exception):
    """This contender cannot do this cell; the message says why."""


@dataclass
class Contender:
    """``call(count)`` makes so many calls and returns the seconds; ``results()`` are those of one call, by name."""

    call: Callable[[int], float]
    results: Callable[[], Mapping[str, Any]]
    allocates: bool  # results are allocated in each call
    note: str = ""
    tolerance: Mapping[str, float] = field(default_factory=dict)  # where a known error is to be timed all the same
    keep: Any = None  # what the C side points to


Factory = Callable[[Problem, int], Contender]


def python_calls(function: Callable[[], Any]) -> Callable[[int], float]:
    """A loop around a Python function; it costs some 20 ns a call itself."""

    def call(count: int) -> float:
        start = time.perf_counter()
        for _ in repeat(None, count):
            function()
        return time.perf_counter() - start

    return call
