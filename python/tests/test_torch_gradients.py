"""Gradients against double autograd of the formula; gradcheck, gradgradcheck, forward mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch_cases import FLOATS, OPTIONS, SHAPE, SMOOTH, draw, operands, reference, same_bits, ulp

import truenorm.torch as tn


def leaves(x: Tensor, w: Tensor, keywords: dict[str, Any]) -> dict[str, Tensor]:
    return {"x": x, "weight": w} | {k: v for k, v in keywords.items() if isinstance(v, Tensor)}


def exact_gradients(
    x: Tensor, w: Tensor, keywords: dict[str, Any], dy: Tensor, dsum: Tensor | None
) -> dict[str, Tensor]:
    """Autograd of the formula in double, of the same inputs."""
    doubles = {k: t.detach().double().requires_grad_() for k, t in leaves(x, w, keywords).items()}
    others = {k: v for k, v in keywords.items() if not isinstance(v, Tensor)}
    y = reference(**doubles, **others)
    loss = (y * dy.double()).sum()
    if dsum is not None:
        loss = loss + ((doubles["x"] + doubles["residual"]) * dsum.double()).sum()
    return dict(zip(doubles, torch.autograd.grad(loss, list(doubles.values())), strict=True))


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gradients(name: str, dtype: torch.dtype) -> None:
    x, w, keywords = operands(name, dtype, grad=True)
    dy, dsum = draw(*SHAPE, dtype=dtype, seed=7), None
    result = tn.norm(x, w, **keywords)
    loss = (result[0] if isinstance(result, tuple) else result).double().mul(dy.double()).sum()
    if isinstance(result, tuple):
        dsum = draw(*SHAPE, dtype=dtype, seed=8)
        loss = loss + result[1].double().mul(dsum.double()).sum()
    mine = leaves(x, w, keywords)
    got = torch.autograd.grad(loss, list(mine.values()))
    exact = exact_gradients(x, w, keywords, dy, dsum)
    for (key, tensor), grad in zip(mine.items(), got, strict=True):
        assert grad.dtype == tensor.dtype and grad.shape == tensor.shape
        reduced = key not in ("x", "residual", "gate")
        scale = ulp(exact[key].abs().amax().expand_as(exact[key]) if reduced else exact[key], dtype)
        slack = 1e-12 if dtype == torch.float64 else 1e-7 * 2.0**-20
        bound = 0.51 if dtype != torch.float64 else 64.0
        assert ((grad.double() - exact[key]).abs() <= bound * scale + slack + 1e-12).all(), key


@pytest.mark.parametrize("name", OPTIONS)
def test_gradcheck(name: str) -> None:
    x, w, keywords = operands(name, torch.float64, grad=True)
    tensors = leaves(x, w, keywords)
    others = {k: v for k, v in keywords.items() if not isinstance(v, Tensor)}

    def call(*values: Tensor) -> Any:
        return tn.norm(**dict(zip(tensors, values, strict=True)), **others)

    small = [t[:2, ..., :].detach().requires_grad_() if t.dim() == 3 else t for t in tensors.values()]
    assert gradcheck(call, small, fast_mode=True, check_forward_ad=name in SMOOTH)
    if name in SMOOTH:
        assert gradgradcheck(call, small, fast_mode=True)


def test_full_gradcheck() -> None:
    """All entries of the Jacobians, of the named functions."""
    x, w, b = (draw(*s, dtype=torch.float64, seed=i, grad=True) for i, s in enumerate([(2, 3, 6), (6,), (6,)]))
    c = draw(3, dtype=torch.float64, seed=9, grad=True)
    for call, inputs in (
        (lambda x, w: tn.rms_norm(x, (6,), w, 1e-3), (x, w)),
        (lambda x, w: tn.rms_norm(x, (6,), w, 1e-3, weight_offset=1.0), (x, w)),
        (lambda x, w, b: tn.layer_norm(x, (6,), w, b, 1e-3), (x, w, b)),
        (lambda x: tn.layer_norm(x, (3, 6)), (x,)),
        (lambda x, w, b: tn.group_norm(x, 3, w, b), (x, c, c)),
        (lambda x, w: tn.add_rms_norm(x, x.flip(0), w), (x, w)),
        (lambda x: tn.normalize(x, dim=1), (x,)),
    ):
        assert gradcheck(call, inputs)
        assert gradgradcheck(call, inputs)


def test_no_double_backward_with_a_gate() -> None:
    x, g = draw(2, 6, grad=True), draw(2, 6, seed=1, grad=True)
    (dx,) = torch.autograd.grad(tn.gated_rms_norm(x, g).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="double backward"):
        dx.sum().backward()


def test_third_order() -> None:
    x = draw(5, dtype=torch.float64, grad=True)

    def second(x: Tensor) -> Tensor:
        (d,) = torch.autograd.grad(tn.rms_norm(x, (5,)).pow(3).sum(), x, create_graph=True)
        (dd,) = torch.autograd.grad(d.pow(2).sum(), x, create_graph=True)
        return dd

    assert gradcheck(second, (x,))


def test_only_what_is_asked_for() -> None:
    x, w = draw(3, 8), draw(8, seed=1, grad=True)
    tn.rms_norm(x, (8,), w).sum().backward()
    assert x.grad is None and w.grad is not None
    r = draw(3, 8, seed=2, grad=True)
    _, total = tn.add_rms_norm(x, r, w)
    total.sum().backward()
    assert torch.equal(r.grad, torch.ones(3, 8))  # type: ignore[arg-type]
    frozen = tn.rms_norm(draw(3, 8, grad=True), (8,), w.detach())
    assert frozen.requires_grad


def test_mixed_dtype_gradients() -> None:
    x, r = draw(6, 16, dtype=torch.bfloat16, grad=True), draw(6, 16, seed=1, grad=True)
    w = draw(16, dtype=torch.float64, seed=2, grad=True)
    y, total = tn.add_rms_norm(x, r, w, sum_dtype=torch.float32)
    (y.float().sum() + total.sum()).backward()
    assert x.grad is not None and r.grad is not None and w.grad is not None
    assert (x.grad.dtype, r.grad.dtype, w.grad.dtype) == (torch.bfloat16, torch.float32, torch.float64)
    assert torch.equal(r.grad.bfloat16(), x.grad)


def test_saved_statistics() -> None:
    """The backward from stored statistics; they have no gradient themselves."""
    x, w, b = draw(9, 32, grad=True), draw(32, seed=1, grad=True), draw(32, seed=2, grad=True)
    y, mean, rstd = tn.norm_with_stats(x, w, b, kind="layer", eps=1e-5, stats_dtype=torch.float64)
    assert not mean.requires_grad and not rstd.requires_grad
    dy = draw(9, 32, seed=3)
    got = torch.autograd.grad(y, (x, w, b), dy)
    want = torch.autograd.grad(tn.layer_norm(x, (32,), w, b, 1e-5), (x, w, b), dy)
    for g, e in zip(got, want, strict=True):
        assert torch.allclose(g, e, rtol=1e-5, atol=1e-6)


def test_small_gradients_survive() -> None:
    """n = 1: dx = dy w eps r^3, which single precision loses; a million rows of bias gradient do not stop growing."""
    x = torch.tensor([[7.3]], requires_grad=True)
    tn.rms_norm(x, (1,), torch.tensor([500.0]), 1e-6).sum().backward()
    assert x.grad is not None and abs(x.grad.item() / 1.2853e-6 - 1) < 1e-4
    b = torch.zeros(8, dtype=torch.bfloat16, requires_grad=True)
    rows = torch.ones(1, dtype=torch.bfloat16).expand(4096, 8)
    tn.layer_norm(rows, (8,), None, b).sum().backward()
    assert b.grad is not None and torch.equal(b.grad, torch.full((8,), 4096.0, dtype=torch.bfloat16))


@pytest.mark.parametrize("need", range(1, 8))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_short_backwards_are_the_general_one(need: int, dtype: torch.dtype) -> None:
    ops = torch.ops.truenorm
    x, dy = draw(5, 24, dtype=dtype), draw(5, 24, dtype=dtype, seed=1)
    w, b = draw(24, seed=2, dtype=dtype), draw(24, seed=3)
    mask = [bool(need & 1), False, False, bool(need & 2), bool(need & 4), False, False]
    general = ops.norm_backward.no_grad
    tensors = (dy, None, x, w)
    full = general(*tensors, *(None,) * 7, 0, 1e-3, 0, 1, 0, 0, 0.5, output_mask=mask)
    short = ops.rms_norm_backward(dy, x, w, 1e-3, 1, 0.5, need)
    assert all(map(same_bits, short, (full[0], full[3])))
    full = general(*tensors, b, *(None,) * 6, 1, 1e-3, output_mask=mask)
    short = ops.layer_norm_backward(dy, x, w, b, 1e-3, need)
    assert all(map(same_bits, short, (full[0], full[3], full[4])))
    assert (short[0] is None) == (not need & 1)
