"""The operators in the dispatcher: opcheck, torch.compile, vmap, torch.func, export."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.library import opcheck
from torch_cases import OPTIONS, draw, operands, same_bits

import truenorm.torch as tn

ops = torch.ops.truenorm
PASSED = {"test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"}


def check(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
    assert opcheck(op, args, kwargs or {}) == dict.fromkeys(PASSED, "SUCCESS")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("grad", [False, True])
def test_opcheck(dtype: torch.dtype, grad: bool) -> None:
    x, r, g = (draw(3, 4, 8, dtype=dtype, seed=i, grad=grad) for i in range(3))
    w, b = (draw(8, dtype=dtype, seed=i, grad=grad) for i in (3, 4))
    m = draw(3, 1, 8, dtype=dtype, seed=5, grad=grad)
    check(ops.rms_norm.default, (x, w, 1e-6, 1, 1.0))
    check(ops.layer_norm.default, (x, w, b, 1e-5))
    check(ops.norm.default, (x, w, b, None, g, m, m), {"kind": 1, "gate_order": 2})
    check(ops.add_norm.default, (x, w, b, r), {"group": 4, "sum_dtype": torch.float32})
    check(ops.norm_stats.default, (x, w), {"group": 2, "out_dtype": torch.float16})
    if not grad:  # no double backward
        gated = (r, None, x, w, b, None, g, m, m, None, None)
        mask = [True, False, True, True, False, True, True]
        check(ops.norm_backward.default, gated, {"gate_order": 1, "output_mask": mask})
    mask = [True, True, False, True, True, False, False]
    check(ops.norm_backward.default, (g, x, x, w, b, r, *(None,) * 5, 1), {"output_mask": mask})


def test_opcheck_without_gradients() -> None:
    x, w, b = draw(3, 4, 8), draw(8, seed=1), draw(8, seed=2)
    check(ops.rms_norm.no_grad, (x, w, 1e-6))
    check(ops.layer_norm.no_grad, (x, None, b, 1e-6))
    check(ops.norm.no_grad, (x, w))
    check(ops.add_norm.no_grad, (x, w, None, x.clone()))
    check(ops.norm_backward.no_grad, (x, None, x, w, *(None,) * 7), {"output_mask": [True] * 7})
    for need in (1, 7):
        check(ops.rms_norm_backward.default, (x, x.clone(), w, 1e-6, 1, 1.0, need))
        check(ops.layer_norm_backward.default, (x, x.clone(), w, b, 1e-6, need))
    check(ops.norm_quantized.default, (x, w), {"out_dtype": torch.int8})
    check(ops.norm_scaled.default, (torch.tensor(0.1), x, w), {"out_dtype": torch.float8_e4m3fn})
    for op in (ops.empty_norm.default, ops.empty_norm.no_grad):  # what it returns is not written
        opcheck(op, (x, w, 1e-6), test_utils=("test_schema", "test_faketensor"))


# ---- torch.compile ----------------------------------------------------------------------------------


class Block(torch.nn.Module):
    """Every module in one."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList([tn.RMSNorm(16), tn.LayerNorm(16), tn.LlamaRMSNorm(16), tn.L2Norm()])
        self.add, self.gated, self.groups = tn.AddRMSNorm(16), tn.RMSNormGated(16, group_size=8), tn.GroupNorm(2, 4)

    def forward(self, x: Tensor, r: Tensor) -> Tensor:
        for norm in self.norms:
            x = norm(x) + r
        y, r = self.add(x, r)
        return self.groups(self.gated(y, r)) * 2


def run(f: Any, module: Block, x: Tensor, r: Tensor) -> list[Tensor]:
    y = f(x, r)
    return [y.detach(), *torch.autograd.grad(y.pow(2).sum(), [x, r, *module.parameters()])]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(backend: str) -> None:
    torch._dynamo.reset()
    module = Block()
    compiled = torch.compile(module, fullgraph=True, backend=backend, dynamic=True)
    for batch in (2, 3, 7):
        x, r = draw(batch, 4, 16, grad=True), draw(batch, 4, 16, seed=1, grad=True)
        for mine, theirs in zip(run(module, module, x, r), run(compiled, module, x, r), strict=True):
            assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-5)
        with torch.no_grad():
            assert torch.allclose(module(x, r), compiled(x, r), rtol=1e-5, atol=1e-6)


def test_one_graph_for_all_batches() -> None:
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    f = torch.compile(lambda x, w: tn.rms_norm(x, (8,), w), fullgraph=True, dynamic=True, backend=counter)
    w = draw(8, seed=1)
    for batch in (2, 3, 50):
        assert same_bits(f(draw(batch, 8), w), tn.rms_norm(draw(batch, 8), (8,), w))
    assert counter.frame_count == 1


@pytest.mark.parametrize("name", OPTIONS)
def test_compiled_options(name: str) -> None:
    torch._dynamo.reset()
    x, w, keywords = operands(name, grad=True)
    f = torch.compile(lambda x, w: tn.norm(x, w, **keywords), fullgraph=True, backend="aot_eager")
    mine, theirs = tn.norm(x, w, **keywords), f(x, w)
    mine, theirs = (t if isinstance(t, tuple) else (t,) for t in (mine, theirs))
    assert all(same_bits(a, b) for a, b in zip(mine, theirs, strict=True))
    a, b = (torch.autograd.grad(sum(t.sum() for t in y), (x, w)) for y in (mine, theirs))
    assert all(same_bits(s, t) for s, t in zip(a, b, strict=True))


def test_export() -> None:
    program = torch.export.export(Block().eval(), (draw(2, 4, 16), draw(2, 4, 16, seed=1)))
    targets = {str(node.target) for node in program.graph.nodes}
    assert {"truenorm.rms_norm.default", "truenorm.add_norm.default"} <= targets


@pytest.mark.filterwarnings("ignore")
def test_trace_and_checkpoint() -> None:
    module, x = Block(), draw(2, 4, 16, grad=True)
    r = draw(2, 4, 16, seed=1)
    traced = torch.jit.trace(module, (x, r))  # type: ignore[no-untyped-call]
    assert same_bits(traced(x, r), module(x, r))
    again = torch.utils.checkpoint.checkpoint(module, x, r, use_reentrant=False)
    (a,), (b,) = (torch.autograd.grad(y.sum(), x) for y in (again, module(x, r)))
    assert same_bits(a, b)


def test_compiled_vmap() -> None:
    torch._dynamo.reset()
    x, w = draw(4, 8), draw(8, seed=1)
    f = torch.compile(torch.vmap(lambda x: tn.rms_norm(x, (8,), w)), fullgraph=True, backend="aot_eager")
    assert same_bits(f(x), tn.rms_norm(x, (8,), w))


def test_nothing_leaks() -> None:
    """Thousands of calls, failing ones too, leave the process as large as it was."""
    resource = pytest.importorskip("resource")
    x, w, g = draw(64, 256, grad=True), draw(256, seed=1, grad=True), draw(64, 256, seed=2)

    def once() -> None:
        with torch.no_grad():
            tn.rms_norm(x, None, w)
            tn.norm(x, w, w, residual=g, gate=g, out_dtype=torch.float64, sum_dtype=torch.float64)
            with pytest.raises(RuntimeError):
                tn.norm(x, w[:-1], gate=g)
        ops.norm_backward(g, g, x, w, *(None,) * 7, output_mask=[True] * 7)

    for _ in range(200):
        once()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(2000):
        once()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # KB; one lost tensor a call is 130 MB


# ---- vmap and torch.func ----------------------------------------------------------------------------


def agree(f: Any, in_dims: Any, *args: Tensor) -> None:
    """vmap against a loop over the samples: the same bits."""
    dims = in_dims if isinstance(in_dims, tuple) else (in_dims,) * len(args)
    size = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
    got = torch.vmap(f, in_dims=dims)(*args)
    samples = [[a if d is None else a.select(d, i) for a, d in zip(args, dims, strict=True)] for i in range(size)]
    want = [f(*sample) for sample in samples]
    if isinstance(got, Tensor):
        got, want = (got,), [(one,) for one in want]
    for k, tensor in enumerate(got):
        assert same_bits(tensor, torch.stack([one[k] for one in want]))


def test_vmap() -> None:
    x, w, b = draw(4, 5, 8), draw(8, seed=1), draw(8, seed=2)
    ws, heads = draw(4, 8, seed=3), draw(4, 5, 8, seed=4)
    agree(lambda x, w: tn.rms_norm(x, None, w), (0, None), x, w)
    agree(lambda x, w: tn.rms_norm(x, None, w), (1, None), x, w)
    agree(lambda x, w: tn.rms_norm(x, None, w, cast="before_scale", weight_offset=1.0), (0, 0), x, ws)
    agree(lambda x, w: tn.rms_norm(x, None, w), (None, 0), x[0], ws)
    agree(lambda x, w: tn.rms_norm(x, None, w), (0, 0), x, heads)
    agree(lambda x, w: tn.rms_norm(x, None, w), (0, 0), draw(4, 3, 5, 8), heads)  # sample by sample
    agree(lambda x, w, b: tn.layer_norm(x, None, w, b), (0, None, None), x, w, b)
    agree(lambda x, w, b: tn.layer_norm(x, None, w, b), (0, 0, None), x, ws, b)
    agree(lambda x, w, b: tn.layer_norm(x, None, w, b), (0, 0, None), draw(4, 3, 5, 8), heads, b)
    agree(lambda x, r, w: tn.add_rms_norm(x, r, w), (0, 0, None), x, x.flip(0), w)
    agree(lambda x, g: tn.gated_rms_norm(x, g, group=4), (0, None), x, x[0])
    agree(lambda x, m: tn.norm(x, mod_scale=m, mod_shift=m), (0, 0), x, ws)
    agree(lambda x: tn.norm_with_stats(x, kind="layer"), 0, x)
    agree(lambda x: tn.group_norm(x, 5), 0, draw(4, 2, 5, 3))
    agree(torch.vmap(lambda x: tn.rms_norm(x, None)), 1, x)


def test_functional_gradients() -> None:
    x, w, g = draw(4, 8, dtype=torch.float64), draw(8, dtype=torch.float64, seed=1), draw(4, 8, dtype=torch.float64)

    def loss(w: Tensor, x: Tensor) -> Tensor:
        return tn.rms_norm(x, None, w).pow(3).sum()

    def general(w: Tensor, x: Tensor) -> Tensor:
        return tn.norm(x, w, w, kind="layer", residual=x.flip(-1), weight_offset=1.0)[0].pow(3).sum()

    def gated(w: Tensor, x: Tensor) -> Tensor:
        return tn.gated_rms_norm(x, x.flip(-1), w).pow(3).sum()

    for f in (loss, general, gated):
        each = torch.func.vmap(torch.func.grad(f, argnums=(0, 1)), in_dims=(None, 0))(w, x)
        for i in range(4):
            a, b = w.clone().requires_grad_(), x[i].clone().requires_grad_()
            for got, want in zip(each, torch.autograd.grad(f(a, b), (a, b)), strict=True):
                assert torch.allclose(got[i], want, rtol=1e-12)
        torch.func.grad(lambda x: torch.vmap(f, in_dims=(None, 0))(w, x).sum())(x)  # noqa: B023
    for f in (loss, general):
        twice = torch.func.jacrev(torch.func.jacrev(f, argnums=1), argnums=1)(w, x[0])
        want = torch.autograd.functional.hessian(lambda x: f(w, x), x[0])  # noqa: B023
        assert torch.allclose(twice, want)
        tangent = torch.func.jvp(lambda x: f(w, x), (x,), (g,))[1]  # noqa: B023
        assert torch.allclose(tangent, (torch.func.grad(lambda x: f(w, x))(x) * g).sum())  # noqa: B023
    with pytest.raises(NotImplementedError, match="forward derivative"):
        torch.func.jvp(lambda x: gated(w, x), (x,), (g,))


def test_set_isa() -> None:
    """The operators' copy of the library follows truenorm.set_isa."""
    import truenorm

    x, best = draw(5, 77), truenorm.isa_name()
    want = tn.rms_norm(x)
    try:
        for name in truenorm.isa_list():
            truenorm.set_isa(name)
            assert same_bits(tn.rms_norm(x), want)
    finally:
        truenorm.set_isa(best)
    with pytest.raises(RuntimeError, match="instruction set"):
        ops.set_isa(99)
