"""The memory of large results, for all extension modules of the package: each keeps its own blocks (src/blocks.h)."""

from __future__ import annotations

import sys
from typing import Protocol

from . import _core


class Keeper(Protocol):
    """Something that keeps blocks: an extension module, or a wrapper of its operators."""

    def held_memory(self) -> int: ...
    def release_memory(self) -> None: ...
    def set_memory_limit(self, bytes: int) -> None: ...


_others: list[Keeper] = []


def held_memory() -> int:
    """Bytes kept for later results, in use by none: at most the limit for NumPy's, and as much for torch's."""
    return _core.held_memory() + sum(other.held_memory() for other in _others)


def release_memory() -> None:
    """Return the memory of :func:`held_memory` to the system. Results that are still in use are not touched."""
    _core.release_memory()
    for other in _others:
        other.release_memory()


def memory_limit() -> int:
    """The most bytes that are kept: 256 MiB at first, or the environment's ``TN_MEMORY_LIMIT`` (bytes)."""
    return _core.memory_limit()


def set_memory_limit(bytes: int) -> None:
    """Keep at most that many bytes, for NumPy's results and for torch's each.

    0 turns it off: results are then allocated by NumPy and torch as any other.

    Raises:
        ValueError: it is negative.
    """
    if bytes < 0:
        raise ValueError(f"bytes: must be at least 0, got {bytes}")
    bytes = min(bytes, sys.maxsize)
    _core.set_memory_limit(bytes)
    for other in _others:
        other.set_memory_limit(bytes)


def add_keeper(other: Keeper) -> None:
    """Have another module follow the functions above."""
    other.set_memory_limit(_core.memory_limit())
    _others.append(other)
