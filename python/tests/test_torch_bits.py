"""The same bits for any number of threads, any batch, any strides: forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_cases import FLOATS, OPTIONS, draw, same_bits

import truenorm.torch as tn

ROWS, N = 96, 1032  # 400 KB of float32: enough for a second thread
DTYPES = pytest.mark.parametrize("dtype", FLOATS, ids=str)
NAMES = pytest.mark.parametrize("name", [n for n in OPTIONS if n != "positions"])


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def large(name: str, dtype: torch.dtype, rows: int = ROWS) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(x, weight and the other tensors by name; the options)."""
    extra, options = OPTIONS[name]
    tensors = {"x": draw(rows, 1, N, dtype=dtype, seed=1), "weight": draw(N, dtype=dtype, seed=2)}
    for seed, key in enumerate(extra, 10):
        shape = (rows, 1, N) if key in ("residual", "gate") or key.startswith("mod") else (N,)
        tensors[key] = draw(*shape, dtype=dtype, seed=seed)
    return tensors, options


def results(tensors: dict[str, Tensor], options: dict[str, Any], dy: Tensor) -> list[Tensor]:
    """y, (sum,) and every gradient."""
    leaves = {k: t.detach().requires_grad_() for k, t in tensors.items()}
    out = tn.norm(**leaves, **options)
    out = out if isinstance(out, tuple) else (out,)
    grads = torch.autograd.grad(out, list(leaves.values()), [dy] * len(out))
    return [t.detach() for t in out] + list(grads)


def all_same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(same_bits(s, t) for s, t in zip(a, b, strict=True))


@DTYPES
@NAMES
def test_threads(name: str, dtype: torch.dtype) -> None:
    tensors, options = large(name, dtype)
    dy = draw(ROWS, 1, N, dtype=dtype, seed=3)
    torch.set_num_threads(1)
    one = results(tensors, options, dy)
    torch.set_num_threads(2)
    assert all_same(one, results(tensors, options, dy))


@NAMES
def test_batch(name: str) -> None:
    """A row alone, and the same row among others."""
    tensors, options = large(name, torch.float32, 64)
    dy = draw(64, 1, N, seed=3)
    whole = results(tensors, options, dy)
    row = {k: t[37:38] if t.dim() == 3 else t for k, t in tensors.items()}
    alone = results(row, options, dy[37:38])
    for a, b in zip(whole, alone, strict=True):
        if a.dim() == 3:
            assert same_bits(a[37:38], b)


def views(t: Tensor) -> list[Tensor]:
    """The same elements under other strides."""
    rows, _, n = t.shape
    padded = torch.zeros(rows, 1, n + 3, dtype=t.dtype)
    padded[..., 2 : n + 2] = t
    inner = torch.zeros(rows, 1, 2 * n, dtype=t.dtype)
    inner[..., ::2] = t
    odd = torch.zeros(rows * n + 1, dtype=t.dtype)
    odd[1:] = t.flatten()
    return [
        padded[..., 2 : n + 2],
        inner[..., ::2],
        t.permute(2, 1, 0).contiguous().permute(2, 1, 0),
        odd[1:].view(rows, 1, n),
        t.flip(0).flip(0),
    ]


@NAMES
def test_strides(name: str) -> None:
    tensors, options = large(name, torch.float32)
    dy = draw(ROWS, 1, N, seed=3)
    want = results(tensors, options, dy)
    for k in range(5):
        strided = {key: views(t)[k] if t.dim() == 3 else t for key, t in tensors.items()}
        assert all_same(want, results(strided, options, views(dy)[k])), k


def test_many_axes() -> None:
    """Leading axes that merge, that do not, and that need a copy."""
    w, b = draw(16, seed=1), draw(16, seed=2)
    x, dy = draw(3, 4, 5, 2, 16), draw(3, 4, 5, 2, 16, seed=3)
    want = results({"x": x, "weight": w, "bias": b}, {"kind": "layer"}, dy)
    for order in ((3, 2, 1, 0, 4), (1, 0, 2, 3, 4), (0, 2, 1, 3, 4), (4, 3, 2, 1, 0)):
        back = sorted(range(5), key=order.__getitem__)
        shuffled = x.permute(order).contiguous().permute(back)
        gradient = dy.permute(order).contiguous().permute(back)
        assert all_same(want, results({"x": shuffled, "weight": w, "bias": b}, {"kind": "layer"}, gradient))
        assert all_same(want, results({"x": x, "weight": w, "bias": b}, {"kind": "layer"}, gradient))


def test_expanded() -> None:
    """Stride 0: rows, gradients, weights."""
    row, w = draw(1, 64), draw(64, seed=1)
    want = results({"x": row.expand(9, 64).contiguous(), "weight": w}, {}, torch.ones(9, 64))
    got = results({"x": row.expand(9, 64), "weight": w}, {}, torch.ones(()).expand(9, 64))
    assert all_same(want, got)
    one = torch.tensor(1.5).expand(64)
    assert same_bits(tn.rms_norm(row, None, one), tn.rms_norm(row, None, one.contiguous()))


@pytest.mark.parametrize("shape", [(4, 16), (1, 4, 16), (3, 1, 1, 16), (1, 1, 16), (3, 5, 4, 16), (16,)], ids=str)
def test_weight_shapes(shape: tuple[int, ...]) -> None:
    """Weights that broadcast over leading axes, against the same weights for each row."""
    x, dy, w = draw(3, 5, 4, 16), draw(3, 5, 4, 16, seed=1), draw(*shape, seed=2)
    full = w.expand(3, 5, 4, 16)
    got = results({"x": x, "weight": w}, {}, dy)
    want = results({"x": x, "weight": full.contiguous()}, {}, dy)
    assert same_bits(got[0], want[0]) and same_bits(got[1], want[1])
    assert torch.allclose(got[2], want[2].sum_to_size(shape), rtol=1e-5, atol=1e-5)


def test_weight_that_two_strides_cannot_say() -> None:
    with pytest.raises(RuntimeError, match="broadcast"):
        tn.norm(draw(3, 5, 4, 16), draw(3, 1, 16))
    with pytest.raises(RuntimeError, match="two row strides"):
        tn.norm(draw(3, 5, 4, 16), draw(3, 1, 4, 16))
    transposed = draw(4, 5, 16).transpose(0, 1)  # fits after a copy of the weight
    x = draw(3, 5, 4, 16)
    assert same_bits(tn.norm(x, transposed), tn.norm(x, transposed.contiguous()))
