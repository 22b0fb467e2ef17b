"""The bit contract through Python: threads, batch sizes, instruction sets. And what threads and locks do."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy_reference import BF16, F32, FLOATS, draw, same_bits

import truenorm

ROWS, N = 64, 1536  # above the size from which threads are used


def calls(x: Any, dy: Any, w: Any, b: Any, **options: Any) -> list[Any]:
    grads = truenorm.layer_norm_backward(dy, x, w, b, **options)
    return [
        truenorm.rms_norm(x, w, **options),
        truenorm.layer_norm(x, w, b, **options),
        *truenorm.add_rms_norm(x, dy, w, **options),
        truenorm.gated_rms_norm(x, dy, w, **options),
        *truenorm.rms_norm_quantized(x, w, dtype="float8_e4m3fn", **options),
        *[g for g in grads if g is not None],
    ]


def operands(dtype: Any) -> tuple[Any, Any, Any, Any]:
    return draw((ROWS, N), dtype), draw((ROWS, N), dtype, 1), draw(N, dtype, 2), draw(N, dtype, 3)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_threads(dtype: Any) -> None:
    one = calls(*operands(dtype), threads=1)
    for threads in (2, 3, 8):
        assert all(same_bits(a, b) for a, b in zip(calls(*operands(dtype), threads=threads), one, strict=True))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_batch(dtype: Any) -> None:
    x, r, w, b = operands(dtype)
    together = [truenorm.rms_norm(x, w), truenorm.layer_norm(x, w, b), *truenorm.add_rms_norm(x, r, w)]
    for i in range(ROWS):
        one = slice(i, i + 1)
        alone = [
            truenorm.rms_norm(x[one], w),
            truenorm.layer_norm(x[i], w, b)[None],
            *truenorm.add_rms_norm(x[one], r[one], w),
        ]
        assert all(same_bits(a[one], c) for a, c in zip(together, alone, strict=True))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_strides(dtype: Any) -> None:
    x, dy, w, b = operands(dtype)

    def spread(a: Any) -> Any:
        wide = np.zeros([2 * d for d in a.shape], a.dtype)
        view = wide[tuple(slice(None, None, 2) for _ in a.shape)]
        view[...] = a
        return view

    got = calls(spread(x), np.asfortranarray(dy), spread(w), spread(b))
    assert all(same_bits(a, c) for a, c in zip(got, calls(x, dy, w, b), strict=True))


@pytest.fixture
def isa() -> Iterator[None]:
    before = truenorm.isa_name()
    yield
    truenorm.set_isa(before)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_instruction_sets(dtype: Any) -> None:
    assert truenorm.isa_list()[0] == "scalar" and truenorm.isa_name() in truenorm.isa_list()
    results = []
    for name in truenorm.isa_list():
        truenorm.set_isa(name)
        assert truenorm.isa_name() == name
        results.append(calls(*operands(dtype)))
    for other in results[1:]:
        assert all(same_bits(a, b) for a, b in zip(other, results[0], strict=True))


def test_number_of_threads() -> None:
    before = truenorm.get_num_threads()
    assert before >= 1
    truenorm.set_num_threads(3)
    assert truenorm.get_num_threads() == 3
    truenorm.set_num_threads(before)
    with pytest.raises(ValueError, match="at least 1"):
        truenorm.set_num_threads(0)


def test_threads_from_the_environment() -> None:
    code = "import truenorm; print(truenorm.get_num_threads(), truenorm.isa_name())"
    env = {**os.environ, "TN_NUM_THREADS": "5", "TN_ISA": "scalar"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["5", "scalar"]


def test_other_threads_run_meanwhile() -> None:
    x = draw((4096, 4096), F32)
    out, stop, ticks = np.empty_like(x), threading.Event(), [0]

    def tick() -> None:
        while not stop.is_set():
            time.sleep(0.0005)
            ticks[0] += 1

    def ticks_during(function: Any, *args: Any, **options: Any) -> int:
        before = ticks[0]
        function(*args, threads=1, **options)
        return ticks[0] - before

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        assert max(ticks_during(truenorm.layer_norm, x, out=out) for _ in range(5)) >= 4
        assert (
            max(ticks_during(truenorm.layer_norm_backward, x, x, need=("dx",), out={"dx": out}) for _ in range(5)) >= 4
        )
    finally:
        stop.set()
        thread.join()


def test_calls_at_the_same_time() -> None:
    inputs = [draw((96, 1024), BF16, seed) for seed in range(8)]
    want = [truenorm.layer_norm(x, threads=1) for x in inputs]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(20):
            if not same_bits(truenorm.layer_norm(inputs[i], threads=2), want[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


FORK = """
import os, numpy as np, truenorm
x = np.ones((512, 1024), np.float32)
truenorm.rms_norm(x, threads=2)
child = os.fork()
if child == 0:
    y = truenorm.rms_norm(x, threads=2)
    os._exit(0 if abs(y - 1).max() < 1e-5 else 1)
_, status = os.waitpid(child, 0)
print("child", status, truenorm.rms_norm(x, threads=2).shape)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_after_fork() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "child 0 (512, 1024)\n"
