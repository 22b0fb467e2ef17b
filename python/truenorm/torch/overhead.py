"""What a call through torch costs beyond an empty operator: ``python -m truenorm.torch.overhead``.

One row of float32. The empty operator takes the same arguments, allocates the same output and writes nothing; it is
registered as ours are (C++, stable ABI). For comparison: one registered from Python (``torch.library.custom_op``), with
``--classic`` one of TORCH_LIBRARY (compiled now, which needs ninja), and torch's own functions. Medians over
interleaved repeats; the last column is the difference from the first line of the same block.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import truenorm.torch as tn
from truenorm.torch._library import ops

Calls = dict[str, Callable[[], Any]]
EMPTY = "empty operator (C++, stable ABI)"

_CLASSIC = """
#include <torch/library.h>
#include <ATen/ATen.h>
static at::Tensor nothing(const at::Tensor &x, const std::optional<at::Tensor> &, double) { return at::empty_like(x); }
TORCH_LIBRARY(truenorm_classic, m) { m.def("nothing(Tensor x, Tensor? weight, float eps) -> Tensor"); }
TORCH_LIBRARY_IMPL(truenorm_classic, CPU, m) { m.impl("nothing", &nothing); }
"""


def _python_operator() -> Callable[..., Tensor]:
    @torch.library.custom_op("truenorm_overhead::nothing", mutates_args=())
    def nothing(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        return torch.empty_like(x)

    return nothing


def _classic_operator() -> Callable[..., Tensor]:
    from torch.utils.cpp_extension import load_inline

    load_inline("truenorm_classic", _CLASSIC, is_python_module=False)  # type: ignore[no-untyped-call]
    operator: Callable[..., Tensor] = torch.ops.truenorm_classic.nothing.default
    return operator


class _Nothing(torch.nn.Module):
    """The empty operator as a module with a weight."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(n))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = ops.empty_norm.no_grad(x, self.weight, 1e-6, 0, 0.0)
        return y


def _forward_calls(n: int, classic: bool) -> Calls:
    x, w, b = torch.randn(1, n), torch.ones(n), torch.zeros(n)
    shape = (n,)
    nothing, module, llama = _Nothing(n), tn.RMSNorm(n), tn.LlamaRMSNorm(n)
    python = _python_operator()
    functional = torch.nn.functional
    calls: Calls = {
        EMPTY: lambda: ops.empty_norm.no_grad(x, w, 1e-6, 0, 0.0),
        "truenorm::rms_norm": lambda: ops.rms_norm.no_grad(x, w, 1e-6, 0, 0.0),
        "truenorm::layer_norm": lambda: ops.layer_norm.no_grad(x, w, b, 1e-6),
        "rms_norm()": lambda: tn.rms_norm(x, shape, w, 1e-6),
        "layer_norm()": lambda: tn.layer_norm(x, shape, w, b, 1e-6),
        "norm()": lambda: tn.norm(x, w),
        "empty operator in a module": lambda: nothing(x),
        "RMSNorm module": lambda: module(x),
        "LlamaRMSNorm module": lambda: llama(x),
        "empty operator (Python, custom_op)": lambda: python(x, w, 1e-6),
        "torch.nn.functional.rms_norm": lambda: functional.rms_norm(x, shape, w, 1e-6),
        "torch.nn.functional.layer_norm": lambda: functional.layer_norm(x, shape, w, b, 1e-6),
    }
    if classic:
        operator = _classic_operator()
        calls["empty operator (C++, TORCH_LIBRARY)"] = lambda: operator(x, w, 1e-6)
    return calls


def _gradient_calls(n: int) -> Calls:
    """The forward alone, recorded for a backward."""
    x, w = torch.randn(1, n, requires_grad=True), torch.ones(n, requires_grad=True)
    shape = (n,)

    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor, eps: float) -> Tensor:
            ctx.save_for_backward(x, w)
            y: Tensor = ops.empty_norm.no_grad(x, w, eps)
            return y

    apply: Callable[..., Any] = Nothing.apply
    return {
        EMPTY + " in an autograd.Function": lambda: apply(x, w, 1e-6),
        "rms_norm()": lambda: tn.rms_norm(x, shape, w, 1e-6),
        "torch.nn.functional.rms_norm": lambda: torch.nn.functional.rms_norm(x, shape, w, 1e-6),
    }


def _step_calls(n: int) -> Calls:
    """Forward and backward of modules, x and all parameters."""
    x, dy = torch.randn(1, n, requires_grad=True), torch.ones(1, n)
    w = torch.ones(n, requires_grad=True)
    modules: dict[str, torch.nn.Module] = {
        "RMSNorm module": tn.RMSNorm(n),
        "LlamaRMSNorm module": tn.LlamaRMSNorm(n),
        "LayerNorm module": tn.LayerNorm(n),
        "torch.nn.RMSNorm": torch.nn.RMSNorm(n),
        "torch.nn.LayerNorm": torch.nn.LayerNorm(n),
    }
    steps: Calls = {"x * weight": lambda: (x * w).backward(dy)}  # type: ignore[no-untyped-call]
    for name, module in modules.items():
        steps[name] = lambda module=module: module(x).backward(dy)  # type: ignore[misc]
    return steps


def measure(calls: Calls, repeats: int, inner: int) -> dict[str, float]:
    """Median microseconds of each call, over ``repeats`` rounds of ``inner`` calls each, in turn."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats + 1):  # the first round warms up
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(inner):
                call()
            times[name].append((time.perf_counter() - start) / inner * 1e6)
    return {name: statistics.median(all_times[1:]) for name, all_times in times.items()}


def _print(title: str, result: dict[str, float]) -> None:
    base = next(iter(result.values()))
    print(f"\n{title}\n{'':44}{'us a call':>10}{'- first':>10}")
    for name, value in result.items():
        print(f"{name:44}{value:10.2f}{value - base:+10.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=4096, help="elements of the row")
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--inner", type=int, default=1000)
    parser.add_argument("--classic", action="store_true", help="also an operator of TORCH_LIBRARY, compiled now")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, 1 x {options.n} float32, one thread")
    with torch.no_grad():
        _print("no gradient", measure(_forward_calls(options.n, options.classic), options.repeats, options.inner))
    _print("with gradient", measure(_gradient_calls(options.n), options.repeats, options.inner))
    _print("forward and backward, 1 x 16", measure(_step_calls(16), options.repeats, options.inner))


if __name__ == "__main__":
    main()
