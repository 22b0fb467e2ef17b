"""truenorm.torch against the formula in double precision: values, dtypes, layouts, errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch_cases import FLOATS, OPTIONS, draw, error_ulp, operands, reference, same_bits, ulp

import truenorm.torch as tn

LENGTHS = [1, 2, 3, 7, 8, 31, 32, 33, 64, 100, 257, 1000, 4096]
# One rounding of 16 bits is exact to 0.501 ulp; float64 is stated as 4 ulp of the larger term.
BOUND = {torch.float32: 0.5001, torch.bfloat16: 0.501, torch.float16: 0.501, torch.float64: 4.0}


def first(result: Any) -> Tensor:
    return result[0] if isinstance(result, tuple) else result


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("n", LENGTHS)
def test_rms_norm(n: int, dtype: torch.dtype) -> None:
    x, w = draw(9, n, dtype=dtype, seed=n), draw(n, dtype=dtype, seed=n + 1)
    y = tn.rms_norm(x, (n,), w, 1e-6)
    assert y.dtype == dtype and y.shape == x.shape
    assert error_ulp(y, reference(x, w)) <= BOUND[dtype]


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("mean", [0.0, 100.0, 1e6])
def test_layer_norm(n: int, mean: float) -> None:
    x = draw(9, n, seed=n) + mean
    w, b = draw(n, seed=1), draw(n, seed=2)
    y = tn.layer_norm(x, (n,), w, b, 1e-5)
    exact, h = reference(x, w, b, kind="layer", eps=1e-5), reference(x, kind="layer", eps=1e-5)
    slack = (n / 64 + 16) * 2.0**-53 * (w.double().abs() * h.abs().clamp(min=1) + b.double().abs())
    reference_error = 2.0**-46 * (1 + mean)  # of this test's own double arithmetic
    assert ((y.double() - exact).abs() <= 0.5 * ulp(exact, torch.float32) + slack + reference_error).all()


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name: str) -> None:
    x, w, keywords = operands(name)
    y = first(tn.norm(x, w, **keywords))
    exact = reference(x, w, **keywords)
    # where terms cancel, an ulp of the result says little: half an ulp of each, and double's slack
    assert ((y.double() - exact).abs() <= 0.501 * ulp(exact, y.dtype) + 1e-13).all()


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("mixture", [(0, 1), (1, 2), (2, 1), (3, 2), (2, 3)], ids=str)
def test_mixed_dtypes(name: str, mixture: tuple[int, int]) -> None:
    mine, others = FLOATS[mixture[0]], FLOATS[mixture[1]]
    x, w, keywords = operands(name, others)
    x = x.to(mine)
    result = tn.norm(x, w, **keywords)
    assert first(result).dtype == mine
    exact = reference(x, w, **keywords)
    bound = 4.0 if mine == torch.float64 else 0.501
    assert ((first(result).double() - exact).abs() <= bound * ulp(exact, mine) + 1e-13).all()


@pytest.mark.parametrize("x_dtype", FLOATS, ids=str)
@pytest.mark.parametrize("w_dtype", FLOATS, ids=str)
def test_output_dtypes(x_dtype: torch.dtype, w_dtype: torch.dtype) -> None:
    x, w = draw(4, 16, dtype=x_dtype), draw(16, dtype=w_dtype, seed=3)
    assert tn.rms_norm(x, None, w).dtype == x_dtype
    assert tn.rms_norm(x, None, w, cast="before_scale").dtype == torch.promote_types(x_dtype, w_dtype)
    t5 = w_dtype if w_dtype in (torch.bfloat16, torch.float16) else torch.float32
    assert tn.rms_norm(x, None, w, cast="t5").dtype == t5
    assert tn.norm(x, w, out_dtype=torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("w_dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_llama_order(dtype: torch.dtype, w_dtype: torch.dtype) -> None:
    """h rounded to x's dtype, then one product in the promoted dtype."""
    x, w = draw(64, 128, dtype=dtype), draw(128, dtype=w_dtype, seed=5)
    h = reference(x).to(dtype)
    assert same_bits(tn.rms_norm(x, None, w, 1e-6, cast="before_scale"), w * h)


def test_sum_output() -> None:
    x, r, w = draw(7, 48, dtype=torch.bfloat16), draw(7, 48, dtype=torch.bfloat16, seed=1), draw(48, seed=2)
    y, total = tn.add_rms_norm(x, r, w)
    assert same_bits(total, x + r)
    assert same_bits(y, tn.rms_norm(x + r, None, w, 1e-6))
    y, total = tn.add_rms_norm(x, r, w, sum="exact", sum_dtype=torch.float32)
    assert same_bits(total, x.float() + r.float())
    assert error_ulp(y, reference(x, w, residual=r)) <= 0.501


def test_residual_broadcasts() -> None:
    x, r = draw(4, 5, 16), draw(16, seed=1)
    assert same_bits(tn.add_rms_norm(x, r)[0], tn.add_rms_norm(x, r.expand_as(x).contiguous())[0])


def test_statistics() -> None:
    x, w, b = draw(6, 5, 32) + 3, draw(32, seed=1), draw(32, seed=2)
    y, mean, rstd = tn.norm_with_stats(x, w, b, kind="layer", eps=1e-5, stats_dtype=torch.float64)
    assert mean.shape == rstd.shape == (6, 5, 1)
    assert torch.allclose(mean, x.double().mean(-1, keepdim=True), rtol=1e-14)
    assert torch.allclose(rstd, (x.double().var(-1, keepdim=True, correction=0) + 1e-5).rsqrt(), rtol=1e-14)
    assert same_bits(y, tn.layer_norm(x, (32,), w, b, 1e-5))
    assert tn.norm_with_stats(x, group=8)[2].shape == (6, 5, 4)


@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.int8, 127.0), (torch.float8_e4m3fn, 448.0), (torch.float8_e5m2, 57344.0)]
)
def test_quantized(dtype: torch.dtype, most: float) -> None:
    x, w = draw(6, 5, 64), draw(64, seed=1)
    q, scale = tn.norm_quantized(x, w, out_dtype=dtype)
    exact = reference(x, w)
    assert q.dtype == dtype and scale.shape == (6, 5, 1)
    assert torch.allclose(scale.double(), exact.abs().amax(-1, keepdim=True) / most, rtol=1e-6)
    step = torch.ones_like(exact) if dtype == torch.int8 else q.double().abs().clamp(min=2.0**-6) / 4
    assert ((q.double() - exact / scale.double()).abs() <= 0.51 * step).all()
    again, given = tn.norm_quantized(x, w, out_dtype=dtype, scale=scale)
    assert given is scale and torch.equal(again.view(torch.int8), q.view(torch.int8))
    assert tn.norm_quantized(x, w, out_dtype=dtype, scale=torch.tensor(0.05))[0].shape == x.shape


# ---- torch.nn.functional's own ----------------------------------------------------------------------


def test_like_torch() -> None:
    F = torch.nn.functional
    x = draw(4, 6, 5, 3)
    w, b, c = draw(5, 3, seed=1), draw(5, 3, seed=2), draw(6, seed=3)
    assert torch.allclose(tn.rms_norm(x, (5, 3), w), F.rms_norm(x, (5, 3), w), atol=1e-6)
    assert torch.allclose(tn.layer_norm(x, (5, 3), w, b), F.layer_norm(x, (5, 3), w, b), atol=1e-6)
    assert torch.allclose(tn.layer_norm(x, [3]), F.layer_norm(x, [3]), atol=1e-6)
    for groups in (1, 2, 3, 6):
        assert torch.allclose(tn.group_norm(x, groups, c, c), F.group_norm(x, groups, c, c), atol=1e-6)
    for dim in (0, 1, -1, (1, 2)):
        assert torch.allclose(tn.normalize(x, dim=dim), F.normalize(x, dim=dim), atol=1e-6)
    assert torch.allclose(tn.rms_norm(x.double(), (3,)), F.rms_norm(x.double(), (3,)), atol=1e-14)
    assert torch.allclose(tn.l2_norm(x, eps=0.0), F.normalize(x, dim=-1), atol=1e-6)


def test_channels_last_input() -> None:
    x = draw(2, 8, 4, 4).to(memory_format=torch.channels_last)
    assert torch.allclose(tn.group_norm(x, 4), torch.nn.functional.group_norm(x, 4), atol=1e-6)


ERRORS = [
    (lambda x: tn.rms_norm(x, ()), "Expected normalized_shape to be at least 1-dimensional"),
    (lambda x: tn.layer_norm(x, []), "Expected normalized_shape to be at least 1-dimensional"),
    (lambda x: tn.rms_norm(x, (3,), draw(4)), r"Expected weight to be of same shape as normalized_shape.* \[4\]"),
    (lambda x: tn.rms_norm(x, None, draw(4)), r"Expected weight to be of same shape as normalized_shape.* \[4\]"),
    (lambda x: tn.layer_norm(x, (3,), None, draw(4)), "Expected bias to be of same shape as normalized_shape"),
    (lambda x: tn.rms_norm(x, (4,)), r"Given normalized_shape=\[4\], expected input with shape \[\*, 4\]"),
    (lambda x: tn.rms_norm(x.int(), None), "x must be float64"),
    (lambda x: tn.rms_norm(draw(1)[0], None), "at least 1 dimension"),
    (lambda x: tn.norm(x, draw(2, 2, 3)), "to broadcast over an input of shape"),
    (lambda x: tn.norm(x, group=2), "must divide"),
    (lambda x: tn.norm(x, partial=5), "out of range"),
    (lambda x: tn.norm(x, eps=float("nan")), "out of range"),
    (lambda x: tn.norm(x, out_dtype=torch.int32), "cannot be a result"),
    (lambda x: tn.norm(x, out_dtype=torch.int8), "out_dtype must be float64"),
    (lambda x: tn.norm(x, residual=x, sum_dtype=torch.int8), "cannot be a result"),
    (lambda x: tn.norm_quantized(x, out_dtype=torch.float32), "out_dtype must be int8"),
    (lambda x: tn.norm_with_stats(x, stats_dtype=torch.float16), "stats_dtype"),
    (lambda x: tn.group_norm(x, 2), "divisible by num_groups"),
    (lambda x: tn.group_norm(draw(4, 6), 2, draw(5)), "Expected weight to be a vector of size equal to the number"),
    (lambda x: tn.group_norm(x, 0), "greater than 0"),
    (lambda x: torch.ops.truenorm.add_norm(x), "needs a residual"),
]


@pytest.mark.parametrize(("call", "message"), ERRORS)
def test_errors(call: Any, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        call(draw(2, 3))


def test_python_errors() -> None:
    x = draw(2, 3)
    with pytest.raises(ValueError, match="kind must be one of 'rms', 'layer', 'l2', not 'batch'"):
        tn.norm(x, kind="batch")  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match="p = 2"):
        tn.normalize(x, 1.0)
    with pytest.raises(NotImplementedError):  # the operators are for the CPU
        tn.rms_norm(x.to_mkldnn())


# ---- policies ---------------------------------------------------------------------------------------


def test_extremes() -> None:
    big = torch.tensor([[1e20, -1e20] * 32])
    assert torch.equal(tn.rms_norm(big, (64,), eps=1e-6).abs(), torch.ones(1, 64))
    assert torch.equal(tn.layer_norm(big, (64,)).abs(), torch.ones(1, 64))
    tiny = torch.full((1, 64), 1e-25)
    assert torch.equal(tn.rms_norm(tiny, (64,), eps=0.0), torch.ones(1, 64))
    assert torch.equal(tn.rms_norm(torch.zeros(2, 8), (8,), eps=0.0), torch.zeros(2, 8))
    assert tn.layer_norm(torch.full((1, 96), 65504.0, dtype=torch.float16), (96,)).abs().max() == 0
    assert tn.rms_norm(draw(3, 8, scale=0.1), (8,), eps=-0.5).isnan().any()
    row = torch.tensor([[1.0, float("inf"), 2.0, 3.0], [1.0, 2.0, 3.0, 4.0]])
    y = tn.rms_norm(row, (4,))
    assert y[0, 1].isnan() and y[0, 0] == 0 and same_bits(y[1], tn.rms_norm(row[1:], (4,))[0])


@pytest.mark.parametrize("shape", [(0, 4), (0, 3, 4), (3, 0), (0, 0), (2, 0, 4)], ids=str)
def test_empty(shape: tuple[int, ...]) -> None:
    x, w = torch.empty(shape, requires_grad=True), torch.ones(shape[-1], requires_grad=True)
    y = tn.layer_norm(x, shape[-1:], w, w)
    assert y.shape == shape
    y.sum().backward()
    assert x.grad is not None and x.grad.shape == shape
    assert w.grad is not None and torch.equal(w.grad, torch.zeros(shape[-1]))
    assert tn.group_norm(torch.empty(0, 6, 2), 3).shape == (0, 6, 2)
    assert tn.group_norm(torch.empty(2, 6, 0), 3).shape == (2, 6, 0)


def test_modes() -> None:
    x, w = draw(4, 8, grad=True), draw(8, seed=1, grad=True)
    y = tn.rms_norm(x, (8,), w)
    assert y.requires_grad and y.grad_fn is not None
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            z = tn.rms_norm(x, (8,), w)
        assert not z.requires_grad and same_bits(y, z)
    with torch.inference_mode():
        assert tn.rms_norm(draw(4, 8), None).is_inference()
    with torch.autocast("cpu", dtype=torch.bfloat16):  # mixed dtypes need no conversion
        assert same_bits(tn.rms_norm(x.bfloat16(), (8,), w), tn.norm(x.bfloat16(), w, eps=None))


def test_no_copy_of_what_is_read() -> None:
    """Inputs, lazily cloned ones too, stay as they are."""
    x = draw(4, 8)
    before, lazy = x.clone(), torch._lazy_clone(x)
    tn.rms_norm(lazy, None)
    assert torch._C._is_cow_tensor(lazy) and torch.equal(x, before)
