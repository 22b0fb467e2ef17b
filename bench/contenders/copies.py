"""What the memory allows: a copy of as many bytes as the cell reads and writes."""

from __future__ import annotations

from functools import partial

import torch

import native
from contenders.base import Absent, Contender, Factory
from problem import Problem


def copy(p: Problem, threads: int, stream: bool) -> Contender:
    """memcpy, or stores that go around the caches; half of the cell's bytes are read and as many are written."""
    lib = native.library()
    if stream and not lib.bench_can_stream():
        raise Absent("no such stores here")
    size = p.cell.bytes // 2
    source, target = torch.ones(size, dtype=torch.int8), torch.empty(size, dtype=torch.int8)

    def call(count: int) -> float:
        seconds: float = lib.bench_copy(target.data_ptr(), source.data_ptr(), size, stream, threads, count)
        return seconds

    return Contender(call, dict, allocates=False, keep=(source, target))


FACTORIES: dict[str, Factory] = {"memcpy": partial(copy, stream=False), "streaming copy": partial(copy, stream=True)}
