"""oneDNN's layer normalization through its C interface (a SYCL build; the CPU engine is an OpenCL device).

The worker's environment names the OpenCL driver and the folder of the libraries (see run.py). Weights are f32, which is
what the fast implementations want.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from ctypes import byref, c_char_p, c_float, c_int, c_int64, c_size_t, c_uint, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import native
from contenders.base import Absent, Contender, Factory
from problem import Problem

# dnnl_types.h, dnnl_common_types.h
F16, BF16, F32 = 1, 2, 3
DTYPES = {torch.float32: F32, torch.bfloat16: BF16, torch.float16: F16}
CPU, IN_ORDER = 1, 1
FORWARD_TRAINING, FORWARD_INFERENCE, BACKWARD = 64, 96, 128
USE_SCALE, USE_SHIFT, RMS_NORM = 2, 4, 32
QUERY_IMPL, QUERY_ARG_MD = 8, 255
SRC, DST, MEAN, VARIANCE, SCALE, SHIFT = 1, 17, 49, 50, 51, 52
DIFF_SRC, DIFF_DST, DIFF_SCALE, DIFF_SHIFT = 129, 145, 255, 256
UNIMPLEMENTED = 3


class _Version(ctypes.Structure):
    _fields_ = [("major", c_int), ("minor", c_int), ("patch", c_int)]


@cache
def _library() -> ctypes.CDLL:
    lib = ctypes.CDLL(str(Path(sys.prefix, "lib", "libdnnl.so.3")))
    lib.dnnl_version.restype = ctypes.POINTER(_Version)
    lib.dnnl_primitive_desc_query_md.restype = c_void_p
    lib.dnnl_primitive_desc_query_md.argtypes = [c_void_p, c_int, c_int]
    lib.dnnl_memory_desc_get_size.restype = c_size_t
    lib.dnnl_memory_desc_get_size.argtypes = [c_void_p]
    return lib


def version() -> str:
    v = _library().dnnl_version().contents
    return f"{v.major}.{v.minor}.{v.patch}"


def _do(name: str, *arguments: Any) -> None:
    status = getattr(_library(), name)(*arguments)
    if status == UNIMPLEMENTED:
        raise Absent("unimplemented for these dtypes")
    if status:
        raise Absent(f"{name}: status {status}")


@cache
def _engine() -> tuple[c_void_p, c_void_p]:
    engine, stream = c_void_p(), c_void_p()
    _do("dnnl_engine_create", byref(engine), CPU, c_size_t(0))
    _do("dnnl_stream_create", byref(stream), engine, c_uint(IN_ORDER))
    return engine, stream


def _layout(tensor: Tensor) -> c_void_p:
    desc, axes = c_void_p(), tensor.dim()
    dims, strides = (c_int64 * axes)(*tensor.shape), (c_int64 * axes)(*tensor.stride())
    _do("dnnl_memory_desc_create_with_strides", byref(desc), axes, dims, DTYPES[tensor.dtype], strides)
    return desc


class _Step:
    """One primitive and its arguments."""

    def __init__(self, desc: c_void_p, operands: Mapping[int, Tensor]) -> None:
        lib, (engine, _) = _library(), _engine()
        self.primitive = c_void_p()
        _do("dnnl_primitive_create", byref(self.primitive), desc)
        self.operands = dict(operands)
        arguments = []
        for index, tensor in operands.items():
            memory = c_void_p()
            layout = lib.dnnl_primitive_desc_query_md(desc, QUERY_ARG_MD, index)
            if lib.dnnl_memory_desc_get_size(layout) == 0:
                continue  # RMS norms have no mean
            _do("dnnl_memory_create", byref(memory), c_void_p(layout), engine, c_void_p(tensor.data_ptr()))
            arguments.append(native.OnednnArg(index, memory))
        self.args = (native.OnednnArg * len(arguments))(*arguments)
        name = c_char_p()
        _do("dnnl_primitive_desc_query", desc, QUERY_IMPL, 0, byref(name))
        self.implementation = (name.value or b"").decode()

    def structure(self) -> native.OnednnStep:
        return native.OnednnStep(self.primitive, len(self.args), self.args)


def onednn(p: Problem, threads: int) -> Contender:
    if p.cell.kind not in ("rms", "layer"):
        raise Absent("no such primitive")
    engine, stream = _engine()
    flags = c_uint(USE_SCALE | RMS_NORM if p.cell.kind == "rms" else USE_SCALE | USE_SHIFT)
    y, weight = p.empty(), p.weight.float()
    operands = {SRC: p.x, DST: y, SCALE: weight}
    if p.bias is not None:
        operands[SHIFT] = p.bias.float()
    desc, layout = c_void_p(), _layout(p.x)
    kind = FORWARD_TRAINING if p.backward else FORWARD_INFERENCE
    if p.backward:
        rows = p.x.shape[:-1]
        operands |= {MEAN: torch.zeros(rows), VARIANCE: torch.zeros(rows)}
    _do(
        "dnnl_layer_normalization_forward_primitive_desc_create",
        *(byref(desc), engine, kind, layout, _layout(y), None, c_float(p.eps), flags, None),
    )
    steps = [_Step(desc, operands)]
    out: dict[str, Tensor] = {"y": y}
    if p.dy is not None:
        dx, dweight, back = p.empty(), torch.empty_like(weight), c_void_p()
        out |= {"dx": dx, "dweight": dweight}
        given = {i: t for i, t in operands.items() if i not in (DST, SHIFT)}
        given |= {DIFF_DST: p.dy, DIFF_SRC: dx, DIFF_SCALE: dweight}
        if p.bias is not None:
            given[DIFF_SHIFT] = out["dbias"] = torch.empty_like(weight)
        _do(
            "dnnl_layer_normalization_backward_primitive_desc_create",
            *(
                byref(back),
                engine,
                BACKWARD,
                _layout(dx),
                _layout(p.dy),
                layout,
                None,
                c_float(p.eps),
                flags,
                desc,
                None,
            ),
        )
        steps.append(_Step(back, given))
    structures = (native.OnednnStep * len(steps))(*(step.structure() for step in steps))
    lib, loop = _library(), native.library().bench_onednn
    execute = ctypes.cast(lib.dnnl_primitive_execute, c_void_p)
    wait = ctypes.cast(lib.dnnl_stream_wait, c_void_p)

    def call(count: int) -> float:
        return native.seconds(loop(execute, wait, stream, structures, len(steps), count))

    def results() -> Mapping[str, Any]:
        call(1)
        return out

    note = ", ".join(step.implementation for step in steps)
    tolerance: dict[str, float] = {}
    if p.backward and p.cell.kind == "rms":
        # oneDNN 3.13 subtracts mean(dy w) from the gradient of an RMSNorm too. The right formula would cost the same.
        note, tolerance = f"{note}; dx is wrong by mean(dy w)", {"dx": float("inf")}
    return Contender(call, results, allocates=False, note=note, tolerance=tolerance, keep=steps)


FACTORIES: dict[str, Factory] = {"oneDNN": onednn}
