"""The choice of instruction set, for all extension modules of the package: each holds a copy of the C library."""

from __future__ import annotations

from collections.abc import Callable

from . import _core

_others: list[Callable[[str], None]] = []


def set_isa(name: str) -> None:
    """Use this instruction set from now on, in the whole process. All give the same bits.

    Raises:
        ValueError: it is not one of :func:`isa_list`.
    """
    _core.set_isa(name)
    for other in _others:
        other(name)


def on_set_isa(other: Callable[[str], None]) -> None:
    """Have a function called with each name that :func:`set_isa` sets."""
    _others.append(other)
