"""Loads the operators, gives their handles, and tells tracing what shapes and dtypes they return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import truenorm
import truenorm.torch as _package
from truenorm._memory import add_keeper

__all__ = ["bind", "ops", "split_arguments"]


def _load() -> None:
    """Load ``_ops.so`` from wherever the package lies (an editable install has two folders).

    Raises ImportError if it was not built (torch was missing then) or fits this torch not at all.
    """
    for folder in _package.__path__:
        path = Path(folder) / "_ops.so"
        if path.exists():
            try:
                torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
            except OSError as error:
                raise ImportError(f"{path} cannot be loaded with torch {torch.__version__}: {error}") from error
            return
    raise ImportError(
        "truenorm was built without its PyTorch operators: install torch (2.10 or later) first, "
        "then build truenorm with --no-build-isolation"
    )


_load()
ops = torch.ops.truenorm


def _set_isa(name: str) -> None:
    """The instruction set of this copy of the C library."""
    ops.set_isa(truenorm.isa_list().index(name))


_set_isa(truenorm.isa_name())
truenorm.on_set_isa(_set_isa)
add_keeper(ops)

# ---- shapes and dtypes for tracing ------------------------------------------------------------------

_CAST_BEFORE_SCALE, _CAST_T5 = 1, 2


def _default_dtype(cast: int, x: Tensor, weight: Tensor | None) -> torch.dtype:
    """The output dtype of a cast mode, as default_dtype() in torch_norm.cpp."""
    if cast == _CAST_BEFORE_SCALE and weight is not None:
        return torch.promote_types(x.dtype, weight.dtype)
    if cast == _CAST_T5:
        half = weight is not None and weight.dtype in (torch.bfloat16, torch.float16)
        return weight.dtype if half and weight is not None else torch.float32
    return x.dtype


def _fake_rms(x: Tensor, weight: Tensor | None, eps: float, cast: int = 0, weight_offset: float = 0.0) -> Tensor:
    return x.new_empty(x.shape, dtype=_default_dtype(cast, x, weight))


def _fake_layer(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    return x.new_empty(x.shape)


# Places among the options that follow the tensors.
_CAST, _GROUP, _SUM_DTYPE, _OUT_DTYPE = 3, 8, 14, 15
_DEFAULTS: tuple[Any, ...] = (0, 1e-6, 0, 0, 0, 0, 0.0, 0.0, 0, 0, 1, 0, 0, 0, None, None)
_TENSORS = 7


def split_arguments(args: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """(x, weight, bias, residual, gate, mod_scale, mod_shift), options: with the defaults filled in."""
    tensors = list(args[:_TENSORS])
    tensors += [None] * (_TENSORS - len(tensors))
    options = list(args[_TENSORS:])
    return tensors, options + list(_DEFAULTS[len(options) :])


def _fake_y(tensors: Sequence[Any], options: Sequence[Any]) -> Tensor:
    x, weight = tensors[:2]
    dtype = options[_OUT_DTYPE] or _default_dtype(options[_CAST], x, weight)
    y: Tensor = x.new_empty(x.shape, dtype=dtype)
    return y


def _fake_norm(*args: Any, **kwargs: Any) -> Tensor:
    return _fake_y(*bind(args, kwargs)[:2])


def _fake_add_norm(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    tensors, options, _ = bind(args, kwargs)
    x = tensors[0]
    return _fake_y(tensors, options), x.new_empty(x.shape, dtype=options[_SUM_DTYPE] or x.dtype)


def _fake_stats(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor, Tensor]:
    tensors, options, rest = bind(args, kwargs)
    x = tensors[0]
    dtype = rest[0] if rest and rest[0] else torch.float64 if x.dtype == torch.float64 else torch.float32
    shape = (*x.shape[:-1], x.shape[-1] // options[_GROUP] if options[_GROUP] else 1)
    y = _fake_y(tensors, options)
    return y, x.new_empty(shape, dtype=dtype), x.new_empty(shape, dtype=dtype)


def _fake_quantized(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    tensors, options, _ = bind(args, kwargs)
    x = tensors[0]
    return _fake_y(tensors, options), x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)


def _fake_scaled(scale: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return _fake_y(*bind(args, kwargs)[:2])


_NAMES = (
    *("x", "weight", "bias", "residual", "gate", "mod_scale", "mod_shift"),
    *("kind", "eps", "eps_mode", "cast", "grade", "flags", "weight_offset", "divisor", "group", "partial", "positions"),
    *("sum_mode", "gate_order", "act", "sum_dtype", "out_dtype", "stats_dtype"),
)


def bind(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """Tensors, options and what follows, from any mix of positional and keyword arguments."""
    defaults = [None] * _TENSORS + list(_DEFAULTS) + [None]
    rest = list(zip(_NAMES, defaults, strict=True))[len(args) :]
    full = list(args) + [kwargs.get(name, default) for name, default in rest]
    end = _TENSORS + len(_DEFAULTS)
    return full[:_TENSORS], full[_TENSORS:end], full[end:]


def _fake_backward(
    dy: Tensor, dsum: Tensor | None, *args: Any, output_mask: Sequence[bool], **kwargs: Any
) -> tuple[Tensor | None, ...]:
    x, weight, bias, residual, gate, mod_scale, mod_shift = bind(args[:7], kwargs)[0]
    like = (x, residual, gate, weight, bias, mod_scale, mod_shift)
    return tuple(
        t.new_empty(t.shape) if wanted and t is not None else None for t, wanted in zip(like, output_mask, strict=True)
    )


def _fake_wanted(need: int, *operands: Tensor | None) -> tuple[Tensor | None, ...]:
    return tuple(None if t is None or not need >> k & 1 else t.new_empty(t.shape) for k, t in enumerate(operands))


def _fake_rms_backward(
    dy: Tensor, x: Tensor, weight: Tensor | None, eps: float, cast: int, weight_offset: float, need: int
) -> tuple[Tensor | None, ...]:
    return _fake_wanted(need, x, weight)


def _fake_layer_backward(
    dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, need: int
) -> tuple[Tensor | None, ...]:
    return _fake_wanted(need, x, weight, bias)


_FAKES: dict[str, Callable[..., Any]] = {
    "rms_norm": _fake_rms,
    "layer_norm": _fake_layer,
    "norm": _fake_norm,
    "add_norm": _fake_add_norm,
    "norm_stats": _fake_stats,
    "norm_quantized": _fake_quantized,
    "norm_scaled": _fake_scaled,
    "norm_backward": _fake_backward,
    "rms_norm_backward": _fake_rms_backward,
    "layer_norm_backward": _fake_layer_backward,
    "empty_norm": _fake_rms,
}
for _name, _fake in _FAKES.items():
    for _overload in getattr(ops, _name).overloads():
        _suffix = "" if _overload == "default" else f".{_overload}"
        torch.library.register_fake(f"truenorm::{_name}{_suffix}", _fake)

# ---- operators without a derivative -----------------------------------------------------------------
# Past the autograd key, where torch would look for tensors that require a gradient only to do nothing with them.

_past_autograd: Any = torch.library.Library("truenorm", "IMPL")  # type: ignore[no-untyped-call]
_PLAIN = [f"{name}.no_grad" for name in _FAKES if "no_grad" in getattr(ops, name).overloads()]
for _name in (*_PLAIN, "rms_norm_backward", "layer_norm_backward"):
    _past_autograd.impl(_name, torch.library.fallthrough_kernel, "AutogradCPU")
