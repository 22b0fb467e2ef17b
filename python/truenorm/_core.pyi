"""The extension module: python/src/core. Its functions check everything; the functions of truenorm name the options."""

from typing import Any

import numpy as np
import numpy.typing as npt

from ._types import Array, NDArray

def forward(x: Array, weight: Array | None = None, bias: Array | None = None, **options: Any) -> Any:
    """tn_norm_forward: y, or a tuple of y, sum (with a residual), mean and rstd (with stats)."""

def quantized(x: Array, weight: Array | None = None, bias: Array | None = None, **options: Any) -> Any:
    """tn_norm_forward to int8 or fp8: (q, scale), or (q, scale, sum) with a residual."""

def apply(x: Array, weight: Array | None = None, bias: Array | None = None, **options: Any) -> Any:
    """tn_norm_apply: results as of forward."""

def backward(
    dy: Array, x: Array, weight: Array | None = None, bias: Array | None = None, **options: Any
) -> tuple[NDArray | None, ...]:
    """tn_norm_backward: the seven gradients in the order of Gradients."""

def moments(x: Array, **options: Any) -> tuple[float, npt.NDArray[np.float64] | None, npt.NDArray[np.float64]]:
    """tn_norm_moments: count, mean, moment2."""

def merge_moments(
    count_a: float,
    mean_a: Array | None,
    moment2_a: Array,
    count_b: float,
    mean_b: Array | None,
    moment2_b: Array,
) -> tuple[float, npt.NDArray[np.float64] | None, npt.NDArray[np.float64]]:
    """tn_moments_merge, element by element; plain sums without means."""

def rstd_from_moments(moment2: Array, count: float, **options: Any) -> npt.NDArray[np.float64]:
    """tn_norm_rstd, element by element."""

def asarray(object: Array, name: str, writable: bool = False) -> NDArray:
    """The object as this module sees it: a NumPy array over its memory."""

def isa_name() -> str:
    """The instruction set in use: "scalar", "avx2", "avx512", "avx512bf16" or "neon"."""

def isa_list() -> list[str]:
    """Those that this build and this processor have, worst first."""

def set_isa(name: str) -> None:
    """Use this one in this module from now on; ValueError if it is not in isa_list()."""

def num_threads() -> int:
    """Threads that a call may use unless it says otherwise."""

def set_num_threads(threads: int) -> None:
    """Change that number."""

def held_memory() -> int:
    """Bytes of memory that this module keeps for results and nobody uses."""

def release_memory() -> None:
    """Return them to the system."""

def memory_limit() -> int:
    """The most that it keeps."""

def set_memory_limit(bytes: int) -> None:
    """Change that; 0 keeps nothing and leaves all results to the usual allocator."""

def version() -> str:
    """The version of the C library."""
