"""Arrays of others through DLPack: tensors of PyTorch, zero-copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy_reference import BF16, F32, draw, same_bits

import truenorm

torch = pytest.importorskip("torch")

DTYPES = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def tensor(shape: Any, dtype: str = "float32", seed: int = 0) -> Any:
    return torch.from_numpy(draw(shape, seed=seed)).to(DTYPES[dtype])


def array(t: Any) -> Any:
    """A NumPy copy, bfloat16 included."""
    if t.dtype == torch.bfloat16:
        return t.contiguous().view(torch.int16).numpy().view(BF16).copy()
    return t.contiguous().numpy().copy()


@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs(dtype: str) -> None:
    x, w = tensor((2, 5, 24), dtype), tensor(24, dtype, 1)
    y = truenorm.rms_norm(x, w)
    assert type(y) is np.ndarray and y.dtype == np.dtype(dtype)
    assert same_bits(y, truenorm.rms_norm(array(x), array(w)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_strided(dtype: str) -> None:
    x = tensor((6, 4, 10, 2), dtype)[::2].permute(0, 2, 3, 1)
    assert same_bits(truenorm.layer_norm(x), truenorm.layer_norm(array(x)))
    row = tensor((1, 7), dtype).expand(5, 7)
    assert same_bits(truenorm.layer_norm(row), truenorm.layer_norm(array(row)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_outputs(dtype: str) -> None:
    x, residual = tensor((4, 24), dtype), tensor((4, 24), dtype, 1)
    want, total = truenorm.add_rms_norm(array(x), array(residual))
    out = torch.empty_like(x)
    y, s = truenorm.add_rms_norm(x, residual, out=out, sum_out=residual)
    assert y is out and s is residual
    assert same_bits(array(out), want) and same_bits(array(residual), total)
    q = torch.empty((4, 24), dtype=torch.float8_e4m3fn)
    truenorm.rms_norm_quantized(x, scale=0.01, out=q)
    assert (
        q.view(torch.uint8).numpy().tobytes()
        == truenorm.rms_norm_quantized(array(x), dtype="float8_e4m3fn", scale=0.01)[0].tobytes()
    )


def test_in_place() -> None:
    x = tensor((4, 24))
    want = truenorm.rms_norm(array(x))
    assert truenorm.rms_norm(x, out=x) is x
    assert same_bits(array(x), want)


def test_group_norm() -> None:
    x, out = tensor((2, 6, 5)), torch.empty(2, 6, 5)
    assert truenorm.group_norm(x, 3, out=out) is out
    assert same_bits(array(out), truenorm.group_norm(array(x), 3))


def test_backward() -> None:
    x, dy, w = tensor((4, 24)), tensor((4, 24), seed=1), tensor(24, seed=2)
    want = truenorm.rms_norm_backward(array(dy), array(x), array(w))
    got = truenorm.rms_norm_backward(dy, x, w, out={"dx": dy})
    assert got.dx is dy and same_bits(array(dy), want.dx) and same_bits(got.dweight, want.dweight)


def test_nothing_is_kept() -> None:
    x = tensor((4, 24))
    y = truenorm.rms_norm(x)
    x.zero_()
    assert y.any()
    x.resize_(1)  # no view is left that would forbid it


def test_empty() -> None:
    assert truenorm.rms_norm(torch.empty(0, 5)).shape == (0, 5)
    assert truenorm.rms_norm(torch.empty(5, 0)).shape == (5, 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.ones(3, requires_grad=True), "requires a gradient"),
        (lambda: torch.ones(3, device="meta"), "x: the Tensor cannot be used through DLPack"),
        (lambda: torch.ones(3, dtype=torch.int32), "x: the Tensor's dtype"),
        (lambda: torch.ones(3, dtype=torch.complex64), "x: the Tensor's dtype"),
        (lambda: torch.ones(3, 3).to_sparse(), "x: the Tensor cannot be used through DLPack"),
    ],
)
def test_errors(make: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        truenorm.rms_norm(make())


class ReadOnly:
    """A DLPack exporter whose memory must not be written."""

    def __init__(self) -> None:
        self.array = draw((2, 3))
        self.array.flags.writeable = False

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_read_only_exporter() -> None:
    a = ReadOnly()
    assert same_bits(truenorm.rms_norm(a), truenorm.rms_norm(a.array))
    with pytest.raises((TypeError, ValueError), match="out: "):
        truenorm.rms_norm(np.ones((2, 3), F32), out=a)
