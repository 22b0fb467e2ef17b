"""Types of arguments and results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol, SupportsFloat, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt


class SupportsDLPack(Protocol):
    """Whatever gives its memory through DLPack: tensors of PyTorch, arrays of JAX, ..."""

    def __dlpack__(self, *, stream: None = ...) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, int]: ...


NDArray: TypeAlias = npt.NDArray[Any]
Array: TypeAlias = NDArray | SupportsDLPack
DType: TypeAlias = npt.DTypeLike | None

Kind: TypeAlias = Literal["rms", "layer", "l2"]
EpsMode: TypeAlias = Literal["inside", "outside", "clamp"]
Cast: TypeAlias = Literal["once", "before_scale", "t5"]
Grade: TypeAlias = Literal["exact", "fast"]
Sum: TypeAlias = Literal["rounded", "exact"]
GateOrder: TypeAlias = Literal["before", "after"]
Activation: TypeAlias = Literal["silu", "sigmoid"]
Gradient: TypeAlias = Literal["dx", "dresidual", "dgate", "dweight", "dbias", "dmod_scale", "dmod_shift"]


class Arithmetic(TypedDict, total=False):
    """How a norm is computed; see :func:`truenorm.norm`."""

    eps_mode: EpsMode
    cast: Cast
    grade: Grade
    weight_offset: SupportsFloat
    divisor: SupportsFloat | None
    group: int | None
    partial: int | None
    positions: int | None
    mod_scale: Array | None
    mod_shift: Array | None
    round_rstd: bool
    round_offset: bool
    round_product: bool
    threads: int | None


class Options(Arithmetic, total=False):
    """Options of the functions that return one array."""

    out_dtype: DType
    out: Array | None


class GateOptions(Options, total=False):
    """Options of :func:`truenorm.gated_rms_norm`."""

    gate_order: GateOrder
    act: Activation


class SumOptions(Options, total=False):
    """Options of :func:`truenorm.add_rms_norm`."""

    sum: Sum
    sum_dtype: DType
    sum_out: Array | None


class NormOptions(GateOptions, SumOptions, total=False):
    """All options of :func:`truenorm.norm` but ``kind`` and ``eps``."""

    residual: Array | None
    gate: Array | None
    stats: DType


class GroupOptions(TypedDict, total=False):
    """Options of :func:`truenorm.group_norm`."""

    eps_mode: EpsMode
    cast: Cast
    grade: Grade
    round_rstd: bool
    round_product: bool
    threads: int | None
    out_dtype: DType


class BackwardOptions(Arithmetic, total=False):
    """Options of the gradients; see :func:`truenorm.norm_backward`."""

    residual: Array | None
    sum: Sum
    sum_dtype: DType
    gate: Array | None
    gate_order: GateOrder
    act: Activation
    out_dtype: DType
    mean: Array | None
    rstd: Array | None
    dsum: Array | None
    out: Mapping[Gradient, Array] | None
    dtypes: Mapping[Gradient, DType] | None
    accumulate: bool


class QuantizedOptions(Arithmetic, total=False):
    """Options of the quantised functions; see :func:`truenorm.norm_quantized`."""

    gate: Array | None
    gate_order: GateOrder
    act: Activation
    scale_dtype: DType
    out: Array | None


class MomentOptions(TypedDict, total=False):
    """Options of :func:`truenorm.moments`."""

    group: int | None
    partial: int | None
    residual: Array | None
    sum: Sum
    sum_dtype: DType
    gate: Array | None
    act: Activation
    threads: int | None


class Gradients(NamedTuple):
    """What :func:`truenorm.norm_backward` returns; None where a gradient was not asked for."""

    dx: NDArray | None
    dresidual: NDArray | None
    dgate: NDArray | None
    dweight: NDArray | None
    dbias: NDArray | None
    dmod_scale: NDArray | None
    dmod_shift: NDArray | None


class Moments(NamedTuple):
    """Statistics of one part of each row: elements counted, their mean (None but for layer norm), and the sum of the
    squares around it."""

    elements: float
    mean: npt.NDArray[np.float64] | None
    moment2: npt.NDArray[np.float64]
