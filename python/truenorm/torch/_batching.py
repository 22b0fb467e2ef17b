"""Batching rules (torch.vmap): the batch becomes the first axis of x, and one call does all of it.

A parameter that differs by sample becomes [batch, 1, ..., n]. Where that would need more than two row strides, the
samples are done one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from truenorm.torch._library import bind, ops

_Dims = Sequence[int | None]


def _element(t: Tensor | None, dim: int | None, size: int) -> Tensor | None:
    """An operand of x's shape, batch first."""
    if t is None:
        return None
    return t.unsqueeze(0).expand(size, *t.shape) if dim is None else t.movedim(dim, 0)


def _param(t: Tensor | None, dim: int | None, size: int, axes: int, spread: bool) -> Tensor | None:
    """A parameter over x of ``axes`` axes a sample; ``spread``: also if it is the same for all samples."""
    if t is None or (dim is None and not spread):
        return t
    batched = t.unsqueeze(0).expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
    ones = (1,) * (axes - (batched.dim() - 1))
    return batched.reshape(size, *ones, *batched.shape[1:])


def _two_strides(x: Tensor, params: Sequence[Tensor | None]) -> bool:
    """Whether the shapes of ``params`` cut the leading axes of x in at most two (torch_layout.h)."""
    cuts = set()
    axes = [i for i in range(x.dim() - 1) if x.shape[i] != 1]
    for param in params:
        if param is None:
            continue
        skip = x.dim() - param.dim()
        varies = [i >= skip and param.shape[i - skip] != 1 for i in axes]
        cuts |= {k for k in range(1, len(axes)) if varies[k - 1] != varies[k]}
    return len(cuts) <= 1


def _one_by_one(op: Callable[..., Any], size: int, dims: Sequence[Any], args: Sequence[Any]) -> tuple[Any, Any]:
    dims = [*dims, *(None,) * (len(args) - len(dims))]
    results = []
    for i in range(size):
        results.append(op(*[a if d is None else a.select(d, i) for a, d in zip(args, dims, strict=False)]))
    if isinstance(results[0], Tensor):
        return torch.stack(results), 0
    stacked = tuple(None if column[0] is None else torch.stack(column) for column in zip(*results, strict=True))
    return stacked, tuple(None if t is None else 0 for t in stacked)


def _rule(op: Callable[..., Any], outputs: int) -> Callable[..., Any]:
    """A rule for (x, weight, bias, residual, gate, mod_scale, mod_shift, options...)."""

    def batched(info: Any, in_dims: Sequence[Any], *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        size = info.batch_size
        tensors, options, rest = bind(args, kwargs)
        options += rest if outputs == 3 else []
        dims: list[int | None] = [*in_dims[:7], *(None,) * (7 - len(in_dims[:7]))]
        wide = _element(tensors[0], dims[0], size)
        assert wide is not None
        params = [_param(tensors[k], dims[k], size, wide.dim() - 1, False) for k in (1, 2, 5, 6)]
        if not _two_strides(wide, params):
            return _one_by_one(op, size, dims, (*tensors, *options))
        residual, gate = (_element(tensors[k], dims[k], size) for k in (3, 4))
        result = op(wide, *params[:2], residual, gate, *params[2:], *options)
        return result, 0 if outputs == 1 else (0,) * outputs

    return batched


def _rms_options(options: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """(eps, cast, weight_offset), the last two by position, by name or at their defaults."""
    given = dict(zip(("eps", "cast", "weight_offset"), options, strict=False)) | kwargs
    return given["eps"], given.get("cast", 0), given.get("weight_offset", 0.0)


def rules(target: Any) -> dict[str, Callable[..., Any]]:
    """The rules by operator; ``target`` has what they call: rms_norm, layer_norm, ..., norm_backward."""

    def rms_norm(info: Any, in_dims: _Dims, x: Tensor, weight: Tensor | None, *options: Any, **kwargs: Any) -> Any:
        size = info.batch_size
        wide = _element(x, in_dims[0], size)
        assert wide is not None
        param = _param(weight, in_dims[1], size, wide.dim() - 1, False)
        full = _rms_options(options, kwargs)
        if not _two_strides(wide, (param,)):
            return _one_by_one(target.rms_norm, size, in_dims, (x, weight, *full))
        return target.rms_norm(wide, param, *full), 0

    def layer_norm(
        info: Any, in_dims: _Dims, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Any, Any]:
        size = info.batch_size
        wide = _element(x, in_dims[0], size)
        assert wide is not None
        params = [_param(t, d, size, wide.dim() - 1, False) for t, d in zip((weight, bias), in_dims[1:3], strict=True)]
        if not _two_strides(wide, params):
            return _one_by_one(target.layer_norm, size, in_dims, (x, weight, bias, eps))
        return target.layer_norm(wide, *params, eps), 0

    def norm_backward(info: Any, in_dims: Sequence[Any], *args: Any, output_mask: Sequence[bool]) -> tuple[Any, Any]:
        call = partial(target.norm_backward, output_mask=list(output_mask))
        return _backward_rule(call, info.batch_size, list(in_dims)[: len(args)], args)

    return {
        "rms_norm": rms_norm,
        "layer_norm": layer_norm,
        "norm": _rule(target.norm, 1),
        "add_norm": _rule(target.add_norm, 2),
        "norm_stats": _rule(target.norm_stats, 3),
        "norm_backward": norm_backward,
    }


def _backward_rule(call: Callable[..., Any], size: int, in_dims: Sequence[Any], args: Sequence[Any]) -> tuple[Any, Any]:
    """Every gradient is wanted for each sample, so all parameters are spread over the batch."""
    x = _element(args[2], in_dims[2], size)
    assert x is not None
    axes = x.dim() - 1
    wide: list[Any] = list(args)
    for k in (0, 1, 2, 5, 6, 9, 10):
        wide[k] = _element(args[k], in_dims[k], size)
    params = (3, 4, 7, 8)
    for k in params:
        wide[k] = _param(args[k], in_dims[k], size, axes, True)
    if not _two_strides(x, [wide[k] for k in params]):
        return _one_by_one(call, size, in_dims, args)
    result = list(call(*wide))
    for place, k in ((3, 3), (4, 4), (5, 7), (6, 8)):
        if result[place] is not None:
            own = args[k].dim() - (in_dims[k] is not None)
            result[place] = result[place].reshape(size, *result[place].shape[axes + 1 - own :])
    return tuple(result), tuple(None if t is None else 0 for t in result)


for _name, _batched in rules(ops).items():
    for _overload in getattr(ops, _name).overloads():
        _suffix = "" if _overload == "default" else f".{_overload}"
        torch.library.register_vmap(f"truenorm::{_name}{_suffix}", _batched)
