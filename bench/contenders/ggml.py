"""ggml: a graph of the norm, the product with the weight (and the sum with the bias), computed by its CPU backend."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import c_bool, c_float, c_int, c_int64, c_size_t, c_void_p
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import native
from contenders.base import Absent, Contender, Factory
from problem import Problem

F32 = 0
GRAPH_MEMORY = 1 << 20


class _InitParams(ctypes.Structure):
    _fields_ = [("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool)]


class _Plan(ctypes.Structure):
    """ggml_cplan."""

    _fields_ = [
        ("work_size", c_size_t),
        ("work_data", c_void_p),
        ("n_threads", c_int),
        ("threadpool", c_void_p),
        ("abort_callback", c_void_p),
        ("abort_callback_data", c_void_p),
        ("use_ref", c_bool),
    ]


class _Tensor(ctypes.Structure):
    """The beginning of ggml_tensor, down to the data, whose place is checked in _library()."""

    _fields_ = [
        ("type", c_int),
        ("buffer", c_void_p),
        ("ne", c_int64 * 4),
        ("nb", c_size_t * 4),
        ("op", c_int),
        ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("src", c_void_p * 10),
        ("view_src", c_void_p),
        ("view_offs", c_size_t),
        ("data", c_void_p),
    ]


class _Library:
    """libggml-base and libggml-cpu, with the types of what is called."""

    def __init__(self, folder: Path) -> None:
        self.base = base = ctypes.CDLL(str(folder / "libggml-base.so"), ctypes.RTLD_GLOBAL)
        self.cpu = cpu = ctypes.CDLL(str(folder / "libggml-cpu.so"), ctypes.RTLD_GLOBAL)
        base.ggml_init.argtypes, base.ggml_init.restype = [_InitParams], c_void_p
        for name, arguments in {
            "ggml_new_tensor_3d": [c_void_p, c_int, c_int64, c_int64, c_int64],
            "ggml_rms_norm": [c_void_p, c_void_p, c_float],
            "ggml_norm": [c_void_p, c_void_p, c_float],
            "ggml_mul": [c_void_p, c_void_p, c_void_p],
            "ggml_add": [c_void_p, c_void_p, c_void_p],
            "ggml_new_graph": [c_void_p],
        }.items():
            function = getattr(base, name)
            function.argtypes, function.restype = arguments, c_void_p
        base.ggml_build_forward_expand.argtypes = [c_void_p, c_void_p]
        base.ggml_get_data.argtypes, base.ggml_get_data.restype = [c_void_p], c_void_p
        base.ggml_free.argtypes = [c_void_p]
        cpu.ggml_cpu_init()
        cpu.ggml_graph_plan.argtypes, cpu.ggml_graph_plan.restype = [c_void_p, c_int, c_void_p], _Plan
        cpu.ggml_threadpool_pause.argtypes = [c_void_p]
        cpu.ggml_threadpool_new.argtypes, cpu.ggml_threadpool_new.restype = [c_void_p], c_void_p


@cache
def _library() -> _Library:
    spec = find_spec("libggml")
    if spec is None or spec.origin is None:
        raise Absent("the package libggml-python is not there")
    return _Library(Path(spec.origin).parent / "lib64")


@cache
def _pool(threads: int) -> Any:
    """A pool that sleeps between graphs, made once; None: ggml makes none for one thread."""
    if threads == 1:
        return None
    params = ctypes.create_string_buffer(1024)  # ggml_threadpool_params: 512 flags and five small members
    _library().base.ggml_threadpool_params_init(params, threads)
    return _library().cpu.ggml_threadpool_new(ctypes.cast(params, c_void_p))


class _Graph:
    """A graph over memory of torch tensors."""

    def __init__(self) -> None:
        self.lib = _library().base
        self.context = self.lib.ggml_init(_InitParams(GRAPH_MEMORY, None, True))
        self.kept: list[Tensor] = []

    def __del__(self) -> None:
        self.lib.ggml_free(self.context)

    def leaf(self, tensor: Tensor) -> Any:
        shape = (*(1,) * (3 - tensor.dim()), *tensor.shape)
        strides = (*(tensor.stride(0) * tensor.shape[0],) * (3 - tensor.dim()), *tensor.stride())
        node = self.lib.ggml_new_tensor_3d(self.context, F32, *reversed(shape))
        view = _Tensor.from_address(node)
        for axis, stride in enumerate(reversed(strides)):
            view.nb[axis] = 4 * stride
        view.nb[3] = view.nb[2] * shape[0]
        return self.place(node, tensor)

    def place(self, node: Any, tensor: Tensor) -> Any:
        """Gives a node its memory."""
        _Tensor.from_address(node).data = tensor.data_ptr()
        if self.lib.ggml_get_data(node) != tensor.data_ptr():
            raise Absent("another layout of ggml_tensor")
        self.kept.append(tensor)
        return node


def ggml(p: Problem, threads: int) -> Contender:
    if p.backward:
        raise Absent("no gradient of the weight")
    if p.cell.dtype != "f32":
        raise Absent("f32 only")
    if p.cell.kind not in ("rms", "layer", "add_rms"):
        raise Absent("no such operator")
    lib, cpu, g = _library().base, _library().cpu, _Graph()
    out = {"y": p.empty()}
    source = g.leaf(p.x)
    if p.residual is not None:
        out["sum"] = p.empty()
        source = g.place(lib.ggml_add(g.context, source, g.leaf(p.residual)), out["sum"])
    norm = lib.ggml_norm if p.cell.kind == "layer" else lib.ggml_rms_norm
    # Each product and sum has its own memory unless the backend fuses it; y serves them all.
    node = g.place(norm(g.context, source, p.eps), out["y"])
    node = g.place(lib.ggml_mul(g.context, node, g.leaf(p.weight)), out["y"])
    if p.bias is not None:
        node = g.place(lib.ggml_add(g.context, node, g.leaf(p.bias)), out["y"])
    graph = lib.ggml_new_graph(g.context)
    lib.ggml_build_forward_expand(graph, node)
    pool = _pool(threads)
    plan = cpu.ggml_graph_plan(graph, threads, pool)
    work = torch.empty(plan.work_size + 64, dtype=torch.int8)
    plan.work_data = work.data_ptr()
    compute = ctypes.cast(cpu.ggml_graph_compute, c_void_p)
    loop = native.library().bench_ggml

    def call(count: int) -> float:
        result = native.seconds(loop(compute, graph, native.address(plan), count))
        if pool is not None:
            cpu.ggml_threadpool_pause(pool)  # else its threads spin while others are measured
        return result

    def results() -> Mapping[str, Any]:
        call(1)
        return out

    return Contender(call, results, allocates=False, keep=(g, work, plan))


FACTORIES: dict[str, Factory] = {"ggml": ggml}
