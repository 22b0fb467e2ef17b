"""PyTorch's own OpInfo and ModuleInfo samples, which its wheel ships, through truenorm.torch.

Results: against the samples' reference (the operator itself, or its NumPy reference). Gradients: against autograd of
the same operator in double precision on the same inputs, since torch's own single precision fails its own samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

pytest.importorskip("expecttest")
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db

import truenorm.torch as tn

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
# Of torch's side; ours is within half an ulp or so of the formula.
TOLERANCE = {
    torch.float64: {"rtol": 1e-10, "atol": 1e-10},
    torch.float32: {"rtol": 2e-5, "atol": 2e-5},
    torch.bfloat16: {"rtol": 2.0**-7, "atol": 2.0**-6},
    torch.float16: {"rtol": 2.0**-10, "atol": 2.0**-9},
}
OPS = {op.name: op for op in op_db}
COUNTS: dict[str, int] = {}


def native_layer_norm(x: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """torch.native_layer_norm by norm_with_stats, which knows the last axis only."""
    axes = len(shape)
    if axes == 0 or list(x.shape[x.dim() - axes :]) != list(shape):
        tn.layer_norm(x, shape, weight, bias, eps)  # raises
    for param in (weight, bias):
        if param is not None and list(param.shape) != list(shape):
            tn.layer_norm(x, shape, weight, bias, eps)
    params = [None if t is None else t.flatten() for t in (weight, bias)]
    y, mean, rstd = tn.norm_with_stats(x.flatten(x.dim() - axes), *params, kind="layer", eps=eps)
    statistics = (*x.shape[: x.dim() - axes], *(1,) * axes)
    return y.view(x.shape), mean.view(statistics), rstd.view(statistics)


OURS: dict[str, Callable[..., Any]] = {
    "nn.functional.rms_norm": tn.rms_norm,
    "nn.functional.layer_norm": tn.layer_norm,
    "nn.functional.group_norm": tn.group_norm,
    "nn.functional.normalize": tn.normalize,
    "native_layer_norm": native_layer_norm,
}
DOUBLE = [name for name in OURS if name != "native_layer_norm"]  # torch does not claim it either
CASES = pytest.mark.parametrize("name", OURS)
EACH_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def count(what: str) -> None:
    COUNTS[what] = COUNTS.get(what, 0) + 1


def first(result: Any) -> Tensor:
    return result[0] if isinstance(result, tuple) else result


def in_scope(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return not name.endswith(".normalize") or (args[0] if args else kwargs.get("p", 2.0)) == 2.0


def samples(name: str, dtype: torch.dtype, grad: bool, reference: bool = False) -> Iterator[Any]:
    op = OPS[name]
    for sample in (op.reference_inputs if reference else op.sample_inputs)("cpu", dtype, requires_grad=grad):
        if in_scope(name, sample.args, sample.kwargs):
            yield sample


def tensors_of(sample: Any) -> list[Tensor]:
    values = (sample.input, *sample.args, *sample.kwargs.values())
    return [t for t in values if isinstance(t, Tensor) and t.requires_grad]


def doubled(value: Any) -> Any:
    return value.detach().double().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value


@CASES
@EACH_DTYPE
def test_samples(name: str, dtype: torch.dtype) -> None:
    for reference in (False, True):
        for s in samples(name, dtype, False, reference):
            got, want = OURS[name](s.input, *s.args, **s.kwargs), OPS[name].op(s.input, *s.args, **s.kwargs)
            got, want = (t if isinstance(t, tuple) else (t,) for t in (got, want))
            for mine, theirs in zip(got, want, strict=True):
                torch.testing.assert_close(
                    mine, theirs.to(mine.dtype), equal_nan=True, **TOLERANCE[dtype], msg=lambda m, s=s: f"{s}\n{m}"
                )
            count("results")


@CASES
@EACH_DTYPE
def test_gradients(name: str, dtype: torch.dtype) -> None:
    for s in samples(name, dtype, True):
        y = first(OURS[name](s.input, *s.args, **s.kwargs))
        dy = torch.linspace(-1.0, 1.0, y.numel(), dtype=dtype).view(y.shape)
        got = torch.autograd.grad(y, tensors_of(s), dy)
        exact_input, exact_args = doubled(s.input), [doubled(a) for a in s.args]
        exact_kwargs = {k: doubled(v) for k, v in s.kwargs.items()}
        if name == "nn.functional.rms_norm" and exact_kwargs.get("eps") is None:
            exact_kwargs["eps"] = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
        z = first(OPS[name].op(exact_input, *exact_args, **exact_kwargs))
        leaves = [t for t in (exact_input, *exact_args, *exact_kwargs.values()) if isinstance(t, Tensor)]
        want = torch.autograd.grad(z, [t for t in leaves if t.requires_grad], dy.double())
        for mine, theirs in zip(got, want, strict=True):
            bound = {"rtol": 1e-9, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 1e-6, "atol": 1e-7}
            if name == "native_layer_norm" and dtype == torch.float32:
                bound = {"rtol": 1e-5, "atol": 1e-5}  # the statistics that it returns, and reads again, are float32
            if dtype in (torch.bfloat16, torch.float16):
                bound = {"rtol": 2.0**-8 if dtype == torch.bfloat16 else 2.0**-11, "atol": 1e-6}
            torch.testing.assert_close(mine.double(), theirs, equal_nan=True, **bound, msg=lambda m, s=s: f"{s}\n{m}")
        count("gradients")


@CASES
def test_gradcheck(name: str) -> None:
    for s in samples(name, torch.float64, True):
        tensors = tensors_of(s)
        if s.input.numel() == 0 or torch.isnan(first(OURS[name](s.input, *s.args, **s.kwargs))).any():
            continue

        def call(*values: Tensor, s: Any = s) -> Tensor:
            queue = list(values)
            swap = [
                queue.pop(0) if isinstance(v, Tensor) and v.requires_grad else v
                for v in (s.input, *s.args, *s.kwargs.values())
            ]
            args = 1 + len(s.args)
            return first(OURS[name](*swap[:args], **dict(zip(s.kwargs, swap[args:], strict=True))))

        assert gradcheck(call, tensors, check_forward_ad=name in DOUBLE)
        count("gradcheck")
        if name in DOUBLE:
            assert gradgradcheck(call, tensors)
            count("gradgradcheck")


@CASES
def test_errors(name: str) -> None:
    op = OPS[name]
    for error in op.error_inputs("cpu") if op.error_inputs_func else ():
        s = error.sample_input
        if not in_scope(name, s.args, s.kwargs):
            continue
        with pytest.raises(error.error_type, match=error.error_regex):
            OURS[name](s.input, *s.args, **s.kwargs)
        count("errors")


MODULES = {"nn.LayerNorm": tn.LayerNorm, "nn.RMSNorm": tn.RMSNorm, "nn.GroupNorm": tn.GroupNorm}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_modules(name: str, dtype: torch.dtype, training: bool) -> None:
    info = next(m for m in module_db if m.name == name)
    for inputs in info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training):
        args, kwargs = inputs.constructor_input.args, inputs.constructor_input.kwargs
        ours, theirs = MODULES[name](*args, **kwargs).to(dtype), info.module_cls(*args, **kwargs).to(dtype)
        ours.load_state_dict(theirs.state_dict())
        ours.train(training)
        forward = inputs.forward_input
        y = ours(*forward.args, **forward.kwargs)
        torch.testing.assert_close(y, theirs(*forward.args, **forward.kwargs), **TOLERANCE[dtype])
        if inputs.reference_fn is not None:
            want = inputs.reference_fn(ours, *forward.args, **forward.kwargs)
            torch.testing.assert_close(y, want.to(dtype), **TOLERANCE[torch.float32])  # which computes in float32
        y.sum().backward()
        assert all(p.grad is not None for p in ours.parameters())
        count("modules")


def test_counts(capsys: pytest.CaptureFixture[str]) -> None:
    """As many as torch has; fewer means that samples were lost."""
    with capsys.disabled():
        print("\nOpInfo and ModuleInfo samples through truenorm:", COUNTS)
    least = {"results": 400, "gradients": 200, "gradcheck": 40, "gradgradcheck": 25, "errors": 8, "modules": 80}
    if len(COUNTS) == len(least):  # the whole file was run
        assert all(COUNTS[key] >= number for key, number in least.items()), COUNTS
