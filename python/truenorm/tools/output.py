"""Terminals, tables, progress, and files that are never left half written."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from .errors import ToolError, first_line

T = TypeVar("T")
PIPE_WIDTH = 160


def console() -> Console:
    """Standard output. In a pipe: no colours, and rows as wide as they are."""
    return Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH, no_color=True)


def table(*columns: str, left: int = 1) -> Table:
    """Numbers to the right, the first `left` columns to the left."""
    result = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, name in enumerate(columns):
        result.add_column(name, justify="left" if i < left else "right", overflow="fold", no_wrap=i >= left)
    return result


def each(label: str) -> Callable[[Iterable[T]], Iterator[T]]:
    """Iterate with a progress bar on standard error, if that is a terminal and there is more than one step."""

    def iterate(items: Iterable[T]) -> Iterator[T]:
        steps = list(items)
        if len(steps) < 2 or not sys.stderr.isatty():
            yield from steps
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            yield from progress.track(steps, description=label)

    return iterate


def write_beside(path: Path, write: Callable[[Path], None]) -> None:
    """`write` fills a file beside `path`, which is then renamed: `path` is the whole file or what it was."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
        os.close(handle)
    except OSError as error:
        raise ToolError(f"{path}: {first_line(error)}") from error
    temporary = Path(name)
    try:
        write(temporary)
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    except OSError as error:
        raise ToolError(f"{path}: {first_line(error)}") from error
    finally:
        temporary.unlink(missing_ok=True)
