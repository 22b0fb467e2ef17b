"""Blocks for large results (src/blocks.h), through both doors: kept, bounded, never given out twice."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import truenorm
import truenorm.torch as tn

MIB = 1 << 20
ROWS, COLUMNS = 1024, 2048  # 8 MiB of float32
EIGHT = 8 * MIB

Make = Callable[[float], Any]


def _numpy(value: float) -> Any:
    return truenorm.rms_norm(np.full((ROWS, COLUMNS), 1, np.float32), np.full(COLUMNS, value, np.float32), eps=0)


def _torch(value: float) -> Any:
    return tn.rms_norm(torch.ones(ROWS, COLUMNS), None, torch.full((COLUMNS,), value), 0.0)


def address(result: Any) -> int:
    return int(result.ctypes.data if isinstance(result, np.ndarray) else result.data_ptr())


@pytest.fixture(params=[_numpy, _torch], ids=["numpy", "torch"])
def make(request: pytest.FixtureRequest) -> Make:
    """All rows of the result are the number that it is given."""
    function: Make = request.param
    return function


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    before = truenorm.memory_limit()
    truenorm.release_memory()
    truenorm.set_memory_limit(64 * MIB)
    yield
    truenorm.release_memory()
    truenorm.set_memory_limit(before)


def test_a_block_comes_back(make: Make) -> None:
    y = make(1.0)
    first = address(y)
    assert first % 64 == 0 and truenorm.held_memory() == 0
    del y
    assert truenorm.held_memory() == EIGHT
    y = make(2.0)
    assert address(y) == first and truenorm.held_memory() == 0
    assert (y == 2.0).all()


@pytest.mark.skipif(sys.platform != "linux", reason="counts Linux's page faults")
def test_no_page_faults(make: Make) -> None:
    x = torch.ones(ROWS, COLUMNS)
    rows = x if make is _torch else x.numpy()
    function: Callable[[Any], Any] = tn.rms_norm if make is _torch else truenorm.rms_norm
    faults = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        function(rows)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    assert min(faults[1:]) < 4  # 2048 small pages, 4 huge ones


def test_the_limit_holds(make: Make) -> None:
    truenorm.set_memory_limit(2 * EIGHT + 1)
    results = [make(float(i)) for i in range(5)]
    assert len({address(y) for y in results}) == 5
    results.clear()
    assert truenorm.held_memory() == 2 * EIGHT
    truenorm.set_memory_limit(EIGHT)
    assert truenorm.held_memory() == EIGHT
    truenorm.set_memory_limit(EIGHT - 1)
    assert truenorm.held_memory() == 0
    y = make(3.0)  # larger than what may be kept: made, and unmapped at once
    assert (y == 3.0).all()
    del y
    assert truenorm.held_memory() == 0


def test_much_larger_blocks_are_not_taken(make: Make) -> None:
    del (big := [make(1.0)])[:]
    assert not big and truenorm.held_memory() == EIGHT
    if make is _torch:
        small: Any = tn.rms_norm(torch.ones(ROWS // 2, COLUMNS))
    else:
        small = truenorm.rms_norm(np.ones((ROWS // 2, COLUMNS), np.float32))
    assert truenorm.held_memory() == EIGHT and small.shape == (ROWS // 2, COLUMNS)


def test_a_view_keeps_the_block(make: Make) -> None:
    y = make(5.0)
    place = address(y)
    view = y[3:5]
    del y
    truenorm.release_memory()
    others = [make(6.0), make(7.0)]
    assert place not in map(address, others)
    assert (view == 5.0).all() and truenorm.held_memory() == 0
    del view
    assert truenorm.held_memory() == EIGHT


def test_a_numpy_view_of_a_tensor_keeps_the_block() -> None:
    array = _torch(5.0).numpy()
    other = _torch(6.0)
    assert (array == 5.0).all() and (other == 6.0).all()


def test_off(make: Make) -> None:
    truenorm.set_memory_limit(0)
    y = make(1.0)
    if isinstance(y, torch.Tensor):
        assert y.untyped_storage().resizable()  # type: ignore[no-untyped-call]
    else:
        assert y.flags.owndata
    del y
    assert truenorm.held_memory() == 0


def test_on_after_off(make: Make) -> None:
    truenorm.set_memory_limit(0)
    y = make(1.0)
    truenorm.set_memory_limit(EIGHT)
    z = make(2.0)
    del y, z
    assert truenorm.held_memory() == EIGHT


def test_small_results_are_the_allocators() -> None:
    assert truenorm.rms_norm(np.ones((512, COLUMNS - 1), np.float32)).flags.owndata
    y = tn.rms_norm(torch.ones(512, COLUMNS - 1))
    assert y.untyped_storage().resizable()  # type: ignore[no-untyped-call]


def test_gradients_use_blocks() -> None:
    x = torch.ones(ROWS, COLUMNS, requires_grad=True)
    y = tn.rms_norm(x, None, torch.ones(COLUMNS, requires_grad=True))
    y.backward(torch.ones(ROWS, COLUMNS))  # type: ignore[no-untyped-call]
    assert x.grad is not None and not x.grad.untyped_storage().resizable()  # type: ignore[no-untyped-call]
    del y
    x.grad = None
    assert truenorm.held_memory() == 2 * EIGHT


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes_and_shapes(dtype: torch.dtype) -> None:
    x = torch.randn(3, 1, 700, 2048, dtype=dtype)
    y = tn.rms_norm(x)
    assert y.is_contiguous() and y.shape == x.shape and y.dtype == dtype
    truenorm.set_memory_limit(0)
    assert torch.equal(y, tn.rms_norm(x))


def test_threads(make: Make) -> None:
    truenorm.set_memory_limit(3 * EIGHT)
    wrong: list[Any] = []

    def work(number: float) -> None:
        for i in range(12):
            y = make(number + i)
            if not (y == number + i).all():
                wrong.append((number, i))

    threads = [threading.Thread(target=work, args=(100.0 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert 0 < truenorm.held_memory() <= 3 * EIGHT


def test_threads_that_only_allocate() -> None:
    x = torch.ones(ROWS, COLUMNS)
    nothing = torch.ops.truenorm.empty_norm.no_grad  # takes a block, and without the interpreter's lock
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(2000):
            y, z = nothing(x, None, 0.0), nothing(x, None, 0.0)
            y[0, 0], z[0, 0] = number, -number
            if y[0, 0] != number or z[0, 0] != -number:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert truenorm.held_memory() <= 64 * MIB


# The operators release the interpreter's lock, so that a fork may find the other thread anywhere.
_FORK = """
import os, signal, threading
import torch
import truenorm
ops = torch.ops.truenorm
import truenorm.torch as tn
torch.set_num_threads(1)
x = torch.ones(1024, 2048)
stop = threading.Event()
def busy():
    while not stop.is_set():
        tn.rms_norm(x)
        ops.release_memory()
thread = threading.Thread(target=busy)
thread.start()
bad = 0
for _ in range(60):
    child = os.fork()
    if child == 0:
        signal.alarm(5)  # a lock that a thread of the parent held would hang
        y = tn.rms_norm(x)
        fine = bool((y == tn.rms_norm(x)).all())
        del y
        os._exit(0 if fine and truenorm.held_memory() > 0 else 1)
    bad += os.waitpid(child, 0)[1] != 0
    if bad:
        break
stop.set()
thread.join()
print(bad)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_fork() -> None:
    result = subprocess.run([sys.executable, "-W", "ignore", "-c", _FORK], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "0"


@pytest.mark.parametrize(
    ("text", "limit"), [("0", 0), ("1000000", 1000000), ("-1", 256 * MIB), ("2x", 256 * MIB), ("9" * 19, 256 * MIB)]
)
def test_environment(text: str, limit: int) -> None:
    code = "import truenorm; print(truenorm.memory_limit())"
    env = {**os.environ, "TN_MEMORY_LIMIT": text}
    result = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert int(result.stdout) == limit


def test_no_limit() -> None:
    truenorm.set_memory_limit(1 << 70)
    results = [make(1.0) for make in (_numpy, _torch)]
    results.clear()
    assert truenorm.held_memory() == 2 * EIGHT


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        truenorm.set_memory_limit(-1)
    assert truenorm.memory_limit() == 64 * MIB


def test_both_follow_the_limit() -> None:
    truenorm.set_memory_limit(EIGHT)
    results = [make(1.0) for make in (_numpy, _torch) for _ in range(2)]
    results.clear()
    assert truenorm.held_memory() == 2 * EIGHT  # one each
    assert torch.ops.truenorm.held_memory() == EIGHT
    truenorm.release_memory()
    assert truenorm.held_memory() == 0
