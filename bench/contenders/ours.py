"""truenorm: the C functions, the NumPy functions, the torch operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ctypes import sizeof
from functools import partial
from typing import Any

import ml_dtypes
import torch
import truenorm
import truenorm.torch as tt
from torch import Tensor

import native
from contenders.base import Absent, Contender, Factory, python_calls
from problem import Problem


def _c_operands(p: Problem, grade: int) -> tuple[native.Desc, native.Io, dict[str, Tensor]]:
    desc = native.Desc(
        struct_size=sizeof(native.Desc),
        n=p.shape.n,
        kind=native.LAYER if p.cell.kind == "layer" else native.RMS,
        grade=grade,
        eps=p.eps,
    )
    desc.rows[:] = (*p.shape.rows, 1)[:2]
    io = native.Io(struct_size=sizeof(native.Io), x=native.view(p.x), weight=native.parameter(p.weight))
    out: dict[str, Tensor] = {}
    if p.cell.kind == "int8":
        out = {"q": p.empty(torch.int8), "scale": torch.empty(*p.x.shape[:-1], 1)}
        io.y, io.scale_out = native.view(out["q"]), native.view(out["scale"])
    else:
        out["y"] = p.empty()
        io.y = native.view(out["y"])
    if p.bias is not None:
        io.bias = native.parameter(p.bias)
    if p.residual is not None:
        out["sum"] = p.empty()
        io.residual, io.sum = native.view(p.residual), native.view(out["sum"])
    if p.gate is not None:
        desc.gate = native.GATE_AFTER if p.cell.kind == "gated_after" else native.GATE_BEFORE
        io.gate = native.view(p.gate)
    return desc, io, out


def _c_gradients(p: Problem, desc: native.Desc, io: native.Io, out: dict[str, Tensor]) -> tuple[native.Grads, Tensor]:
    assert p.dy is not None
    grads = native.Grads(struct_size=sizeof(native.Grads), dy=native.view(p.dy))
    out["dx"], out["dweight"] = p.empty(), torch.empty_like(p.weight)
    grads.dx, grads.dweight = native.view(out["dx"]), native.parameter(out["dweight"])
    if p.dsum is not None:
        grads.dsum = native.view(p.dsum)
    if p.bias is not None:
        out["dbias"] = torch.empty_like(p.bias)
        grads.dbias = native.parameter(out["dbias"])
    if p.gate is not None:
        out["dgate"] = p.empty()
        grads.dgate = native.view(out["dgate"])
    size = native.library().tn_norm_backward_workspace(native.address(desc), native.address(io), native.address(grads))
    workspace = torch.empty(size // 8 + 1, dtype=torch.float64)
    grads.workspace, grads.workspace_size = workspace.data_ptr(), size
    return grads, workspace


def c_function(p: Problem, threads: int, grade: int = native.EXACT, kept: bool = False) -> Contender:
    """tn_norm_forward, with tn_norm_backward after it; ``kept``: the backward reads the forward's f32 statistics."""
    if grade == native.FAST and p.cell.dtype != "f32":
        raise Absent("the grades differ for f32 only")
    if kept and not p.backward:
        raise Absent("for a backward")
    lib = native.library()
    desc, io, out = _c_operands(p, grade)
    if not p.backward:

        def forward(count: int) -> float:
            return native.seconds(lib.bench_forward(native.address(desc), native.address(io), threads, count))

        return Contender(forward, partial(_called, forward, out), allocates=False, keep=(desc, io))
    saved = native.Io.from_buffer_copy(io)
    statistics = [torch.empty(*p.x.shape[:-1], 1) for _ in range(2)]
    if kept:
        for name, tensor in zip(("rstd", "mean")[: 1 + (p.cell.kind == "layer")], statistics, strict=False):
            setattr(io, name, native.view(tensor))
            setattr(saved, name + "_in", native.view(tensor))
    grads, workspace = _c_gradients(p, desc, saved, out)

    def both(count: int) -> float:
        pointers = (native.address(structure) for structure in (desc, io, saved, grads))
        return native.seconds(lib.bench_forward_backward(*pointers, threads, count))

    return Contender(both, partial(_called, both, out), allocates=False, keep=(statistics, workspace))


def _called(call: Callable[[int], float], out: Mapping[str, Any]) -> Mapping[str, Any]:
    call(1)
    return out


# ---- NumPy ----------------------------------------------------------------------------------------------


def _array(tensor: Tensor) -> Any:
    """The tensor's memory as an array."""
    tensor = tensor.detach()
    return (
        tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if tensor.dtype == torch.bfloat16 else tensor.numpy()
    )


def numpy_function(p: Problem, threads: int) -> Contender:
    """The NumPy functions, results in arrays that are there already."""
    truenorm.set_num_threads(threads)
    x, w = _array(p.x), _array(p.weight)
    b, r, z = (None if t is None else _array(t) for t in (p.bias, p.residual, p.gate))
    out: dict[str, Tensor] = {}
    kind: Any = "layer" if p.cell.kind == "layer" else "rms"
    order: dict[str, Any] = {} if z is None else {"gate_order": "after" if p.cell.kind == "gated_after" else "before"}
    if p.cell.kind == "int8":
        out = {"q": p.empty(torch.int8)}
        q = out["q"].numpy()

        def quantize() -> Any:
            return truenorm.norm_quantized(x, w, eps=p.eps, out=q)

        def quantized() -> Mapping[str, Any]:
            _, scale = quantize()
            return {**out, "scale": torch.from_numpy(scale)}

        return Contender(python_calls(quantize), quantized, allocates=False, note="the scales are allocated")
    out["y"] = p.empty()
    y = _array(out["y"])
    options = dict(order)
    if r is not None:
        out["sum"] = p.empty()
        options |= {"residual": r, "sum_out": _array(out["sum"])}
    if z is not None:
        options["gate"] = z

    def forward() -> Any:
        return truenorm.norm(x, w, b, kind=kind, eps=p.eps, out=y, **options)

    function = forward
    if p.dy is not None:
        out |= {"dx": p.empty(), "dweight": torch.empty_like(p.weight)}
        if p.bias is not None:
            out["dbias"] = torch.empty_like(p.bias)
        if p.gate is not None:
            out["dgate"] = p.empty()
        arrays: Any = {name: _array(tensor) for name, tensor in out.items() if name[0] == "d"}
        need: Any = tuple(arrays)
        dy = _array(p.dy)
        extra: dict[str, Any] = dict(order)
        if p.dsum is not None:
            extra |= {"residual": r, "dsum": _array(p.dsum)}
        if z is not None:
            extra["gate"] = z

        def both() -> Any:
            forward()
            return truenorm.norm_backward(dy, x, w, b, kind=kind, eps=p.eps, need=need, out=arrays, **extra)

        function = both
    call = python_calls(function)
    return Contender(call, partial(_called, call, out), allocates=False)


# ---- torch ----------------------------------------------------------------------------------------------


def torch_function(p: Problem) -> Callable[..., Any]:
    """Our function of (x, weight, bias, residual, gate)."""
    shape = (p.shape.n,)

    def function(x: Tensor, w: Tensor, b: Tensor | None, r: Tensor | None, z: Tensor | None) -> Any:
        if r is not None:
            return tt.add_rms_norm(x, r, w, p.eps)
        if z is not None:
            order = "after" if p.cell.kind == "gated_after" else "before"
            return tt.gated_rms_norm(x, z, w, p.eps, gate_order=order)
        if p.cell.kind == "int8":
            return tt.norm_quantized(x, w, eps=p.eps)
        if p.cell.kind == "layer":
            return tt.layer_norm(x, shape, w, b, p.eps)
        return tt.rms_norm(x, shape, w, p.eps)

    return function


def torch_operator(p: Problem, threads: int) -> Contender:
    """The functions of truenorm.torch."""
    from contenders.torch_peers import torch_contender

    return torch_contender(p, torch_function(p))


FACTORIES: dict[str, Factory] = {
    "C exact": partial(c_function, grade=native.EXACT),
    "C fast": partial(c_function, grade=native.FAST),
    "C kept": partial(c_function, kept=True),
    "numpy out=": numpy_function,
    "torch op": torch_operator,
}
