"""How long calls take: contenders take turns, each sample is a batch of calls, medians. Standard library only."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Call = Callable[[int], float]  # makes so many calls, returns the seconds

# Threads of the others spin a while after their last call, which would cost whoever is next.
SETTLE_SECONDS = 0.002
# Calls slower than this get fewer rounds, but MIN_ROUNDS at least.
SLOW_SECONDS, MIN_ROUNDS = 0.04, 7


@dataclass
class Timing:
    us: float  # median
    min_us: float
    calls: int  # in one sample
    rounds: int


def calls_per_sample(call: Call, sample_us: float) -> int:
    """So many that they take ``sample_us``. Also warms up."""
    call(1)
    count = 1
    while True:
        seconds = call(count)
        if seconds >= 0.5e-6 * sample_us:
            return max(1, round(count * sample_us * 1e-6 / seconds))
        count *= 4


def measure(calls: Mapping[str, Call], rounds: int, sample_us: float, settle: bool) -> dict[str, Timing]:
    """Times all of them, in turn. ``settle``: waits before each sample until the threads of others sleep."""
    counts = {name: calls_per_sample(call, sample_us) for name, call in calls.items()}
    wall: dict[str, list[float]] = {name: [] for name in calls}
    gc.collect()
    gc.disable()
    try:
        for turn in range(rounds):
            for name, call in calls.items():
                if turn >= MIN_ROUNDS and wall[name][0] > SLOW_SECONDS:
                    continue
                if settle:
                    time.sleep(SETTLE_SECONDS)
                call(max(1, counts[name] // 4))  # what others left in the caches goes
                wall[name].append(call(counts[name]) / counts[name])
    finally:
        gc.enable()
    return {
        name: Timing(
            us=1e6 * statistics.median(times),
            min_us=1e6 * min(times),
            calls=counts[name],
            rounds=len(times),
        )
        for name, times in wall.items()
    }
