"""Normalization layers for CPUs: right to the last bit, the same bits everywhere.

For NumPy arrays and anything with ``__dlpack__``; ``truenorm.torch`` has operators and modules for PyTorch.

>>> import numpy as np, truenorm
>>> truenorm.rms_norm(np.array([[1, 2, 3, 4]], np.float32))
array([[0.36514834, 0.7302967 , 1.095445  , 1.4605933 ]], dtype=float32)
"""

from __future__ import annotations

from ._backward import group_norm_backward, layer_norm_backward, norm_backward, rms_norm_backward
from ._core import isa_list, isa_name, set_num_threads
from ._core import num_threads as get_num_threads
from ._core import version as _version
from ._forward import (
    add_rms_norm,
    gated_rms_norm,
    group_norm,
    l2_norm,
    layer_norm,
    layer_norm_quantized,
    norm,
    norm_quantized,
    rms_norm,
    rms_norm_quantized,
)
from ._isa import on_set_isa, set_isa
from ._memory import held_memory, memory_limit, release_memory, set_memory_limit
from ._parts import merge_moments, moments, norm_apply, rstd_from_moments
from ._types import Gradients, Moments

__version__ = _version()

__all__ = [
    "Gradients",
    "Moments",
    "__version__",
    "add_rms_norm",
    "gated_rms_norm",
    "get_num_threads",
    "group_norm",
    "group_norm_backward",
    "held_memory",
    "isa_list",
    "isa_name",
    "l2_norm",
    "layer_norm",
    "layer_norm_backward",
    "layer_norm_quantized",
    "memory_limit",
    "merge_moments",
    "moments",
    "norm",
    "norm_apply",
    "norm_backward",
    "norm_quantized",
    "on_set_isa",
    "release_memory",
    "rms_norm",
    "rms_norm_backward",
    "rms_norm_quantized",
    "rstd_from_moments",
    "set_isa",
    "set_memory_limit",
    "set_num_threads",
]
