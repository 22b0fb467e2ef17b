"""bench/: the timing loop on calls that take no time, the float64 results, the check before a contender is timed."""

from __future__ import annotations

from collections.abc import Callable

import grid
import pytest
import timing
import torch
import torch.nn.functional as F
from problem import Problem, WrongResult, check, make_problem


def fake(seconds: list[float]) -> Callable[[int], float]:
    """A call that says it takes these seconds, in turn."""
    left = list(seconds)

    def call(count: int) -> float:
        return count * (left.pop(0) if len(left) > 1 else left[0])

    return call


def test_a_sample_is_as_many_calls_as_it_takes() -> None:
    assert timing.calls_per_sample(fake([1e-6]), 200) == 200
    assert timing.calls_per_sample(fake([1.0]), 200) == 1


def test_medians_and_fewer_rounds_for_slow_calls() -> None:
    times = timing.measure({"quick": fake([1e-6]), "slow": fake([0.1])}, rounds=15, sample_us=200, settle=False)
    assert times["quick"].us == pytest.approx(1) and times["quick"].rounds == 15 and times["quick"].calls == 200
    assert times["slow"].us == pytest.approx(1e5) and times["slow"].rounds == timing.MIN_ROUNDS


def test_the_median_and_the_least() -> None:
    # Two calls warm up and choose one call a sample; then each sample is a call that is not counted and one that is.
    counted = [8.0, 1.0, 3.0]
    times = timing.measure({"x": fake([2, 2, 9, counted[0], 9, counted[1], 9, counted[2]])}, 3, 200, settle=False)
    assert times["x"].us == pytest.approx(3e6) and times["x"].min_us == pytest.approx(1e6)


def problem(name: str) -> Problem:
    """A cell's problem on a few rows."""
    return make_problem(grid.find_cell(name), grid.Shape((3,), 40))


def test_the_view_is_strided() -> None:
    cell = grid.find_cell("rms/f32/4096x128-view/forward/1")
    p = make_problem(cell, cell.shape)
    assert p.x.shape == (128, 32, 128) and p.x.stride() == (48 * 128, 128, 1)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_right_results_pass_and_their_errors_are_given(dtype: str) -> None:
    p = problem(f"layer/{dtype}/32x4096/backward/1")
    leaves = [t.double().requires_grad_() for t in (p.x, p.weight, p.bias) if t is not None]
    assert p.dy is not None
    y = F.layer_norm(leaves[0], (40,), leaves[1], leaves[2], p.eps)
    grads = torch.autograd.grad(y, leaves, p.dy.double())
    right = dict(zip(("y", "dx", "dweight", "dbias"), (y, *grads), strict=True))
    assert max(check(p, right, {}).values()) < 1e-4  # torch's float64 against NumPy's
    rounded = check(p, {name: value.to(p.dtype) for name, value in right.items()}, {})
    assert 0.05 < rounded["y"] <= 0.5001


def gated(p: Problem) -> torch.Tensor:
    assert p.gate is not None
    return F.rms_norm(p.x.double() * F.silu(p.gate.double()), (40,), p.weight.double(), p.eps)


def test_gate_before_and_after_differ() -> None:
    before, after = problem("gated/f32/32x4096/forward/1"), problem("gated_after/f32/32x4096/forward/1")
    assert check(before, {"y": gated(before)}, {})["y"] < 1e-4
    with pytest.raises(WrongResult, match="y is off by"):
        check(after, {"y": gated(after)}, {})


def test_int8_is_checked_in_steps() -> None:
    p = problem("int8/f32/32x4096/forward/1")
    y = F.rms_norm(p.x.double(), (40,), p.weight.double(), p.eps)
    scale = y.abs().amax(-1, keepdim=True) / 127
    q = (y / scale).round()
    assert check(p, {"q": q, "scale": scale}, {})["q"] <= 0.5001
    with pytest.raises(WrongResult, match=r"q is off by .* steps"):
        check(p, {"q": q + 1, "scale": scale}, {})
    with pytest.raises(WrongResult, match="scale is off"):
        check(p, {"q": q, "scale": scale * 1.01}, {})


def test_wrong_results_are_refused() -> None:
    p = problem("rms/f32/32x4096/forward/1")
    right = F.rms_norm(p.x.double(), (40,), p.weight.double(), p.eps)
    lost = right.clone()
    lost[2, 39] = 0
    for wrong in (lost, right * 1.001, torch.full_like(right, torch.nan), right - right):
        with pytest.raises(WrongResult, match="y is off by"):
            check(p, {"y": wrong}, {})
    with pytest.raises(WrongResult, match="shape"):
        check(p, {"y": right[:2]}, {})
    with pytest.raises(WrongResult, match="y is not computed"):
        check(p, {}, {})
    assert check(p, {"y": lost}, {"y": float("inf")})["y"] > 1000
