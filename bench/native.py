"""The C structures of truenorm.h for ctypes, and the loops of calls.c."""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, byref, c_double, c_int, c_size_t, c_ssize_t, c_uint, c_void_p
from functools import cache

import torch
from torch import Tensor

DTYPES = {torch.float64: 1, torch.float32: 2, torch.bfloat16: 3, torch.float16: 4, torch.int8: 5}
RMS, LAYER = 0, 1
EXACT, FAST = 0, 1
GATE_BEFORE, GATE_AFTER = 1, 2


class Operand(ctypes.Structure):
    """tn_in and tn_out."""

    _fields_ = [("data", c_void_p), ("dtype", c_int), ("stride", c_ssize_t * 2), ("inner", c_ssize_t)]


class Desc(ctypes.Structure):
    """tn_norm_desc."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("rows", c_size_t * 2),
        ("n", c_size_t),
        ("kind", c_int),
        ("cast", c_int),
        ("grade", c_int),
        ("flags", c_uint),
        ("eps", c_double),
        ("eps_mode", c_int),
        ("divisor", c_double),
        ("group", c_size_t),
        ("partial", c_size_t),
        ("weight_offset", c_double),
        ("gate", c_int),
        ("act", c_int),
        ("sum", c_int),
        ("positions", c_size_t),
        ("store", c_int),
    ]


_IO = "x residual gate weight bias y sum mean rstd scale_in scale_out mean_in rstd_in moment2 mod_scale mod_shift"
_GRADS = "dy dsum dx dresidual dgate dweight dbias dmod_scale dmod_shift"


class Io(ctypes.Structure):
    """tn_norm_io."""

    _fields_ = [("struct_size", c_size_t), *((name, Operand) for name in _IO.split())]


class Grads(ctypes.Structure):
    """tn_norm_grads."""

    _fields_ = [
        ("struct_size", c_size_t),
        *((name, Operand) for name in _GRADS.split()),
        ("accumulate", c_uint),
        ("workspace", c_void_p),
        ("workspace_size", c_size_t),
    ]


class OnednnArg(ctypes.Structure):
    _fields_ = [("index", c_int), ("memory", c_void_p)]


class OnednnStep(ctypes.Structure):
    _fields_ = [("primitive", c_void_p), ("count", c_int), ("args", POINTER(OnednnArg))]


class CallFailed(Exception):
    """A C call gave a status that is no success."""


@cache
def library() -> ctypes.CDLL:
    """calls.c, and with it libtruenorm; TN_BENCH_CALLS is its path (scripts/bench.sh builds it)."""
    lib = ctypes.CDLL(os.environ["TN_BENCH_CALLS"])
    for name, arguments in {
        "bench_forward": [c_void_p, c_void_p, c_int, c_size_t],
        "bench_forward_backward": [c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_size_t],
        "bench_onednn": [c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_size_t],
        "bench_ggml": [c_void_p, c_void_p, c_void_p, c_size_t],
        "bench_copy": [c_void_p, c_void_p, c_size_t, c_int, c_int, c_size_t],
    }.items():
        function = getattr(lib, name)
        function.argtypes, function.restype = arguments, c_double
    lib.tn_norm_backward_workspace.argtypes = [c_void_p, c_void_p, c_void_p]
    lib.tn_norm_backward_workspace.restype = c_size_t
    lib.tn_isa_name.restype = lib.tn_version.restype = ctypes.c_char_p
    sizes = (c_size_t * 3)()
    lib.bench_sizes(sizes)
    ours = [ctypes.sizeof(structure) for structure in (Desc, Io, Grads)]
    if list(sizes) != ours:
        raise RuntimeError(f"native.py: structures of {ours} bytes, those of truenorm.h have {list(sizes)}")
    return lib


def seconds(result: float) -> float:
    """The result of a loop of calls.c. Raises CallFailed."""
    if result < 0:
        raise CallFailed(f"status {-result:g}")
    return result


def view(tensor: Tensor) -> Operand:
    """Rows of the last axis under one or two leading ones."""
    strides = tensor.stride()
    lead = (strides[0], strides[1]) if tensor.dim() == 3 else (strides[0], 0)
    return Operand(tensor.data_ptr(), DTYPES[tensor.dtype], (c_ssize_t * 2)(*lead), strides[-1])


def parameter(tensor: Tensor) -> Operand:
    """[n], the same for all rows."""
    return Operand(tensor.data_ptr(), DTYPES[tensor.dtype], (c_ssize_t * 2)(0, 0), 1)


def per_row(tensor: Tensor) -> Operand:
    """[..., 1]: one value a row."""
    return view(tensor)


def address(structure: ctypes.Structure) -> c_void_p:
    return ctypes.cast(byref(structure), c_void_p)
