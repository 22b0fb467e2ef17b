"""Gradients of the operators: each backward is one call of ``norm_backward``, which recomputes the statistics.

Recomputing is the more accurate choice (docs/numerics.md) and keeps nothing per element but the inputs. Of
``add_norm`` the returned sum is kept instead of its two terms where that is the same.

One derivative has three faces: the registration with the operator (for torch.compile and direct calls), an
autograd.Function of the older style (eager mode: a third of the overhead) and one of the newer style (torch.func).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad
from torch.compiler import is_compiling

from truenorm.torch._batching import rules
from truenorm.torch._double import KIND_LAYER, Options, double_backward, forward_derivative
from truenorm.torch._library import ops, split_arguments

__all__ = ["add_norm", "layer_norm", "norm", "norm_backward", "norm_stats", "rms_norm"]

_BEFORE_TENSORS = 2  # dy, dsum
_STATISTICS = 2  # mean, rstd
_OPTIONS = 16
_is_tracing: Callable[[], bool] = torch.jit.is_tracing  # type: ignore[attr-defined]
_backward_no_grad = ops.norm_backward.no_grad
_rms_once, _layer_once = ops.rms_norm_backward.default, ops.layer_norm_backward.default
# Private, but what autograd.Function.apply itself asks; without it torch.func is not supported.
_functorch_active: Callable[[], bool] = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)


def _call_backward(*args: Any, output_mask: list[bool]) -> tuple[Tensor | None, ...]:
    """norm_backward; without a place in the graph if nobody will differentiate it again."""
    if torch.is_grad_enabled():
        return norm_backward(*args, output_mask=output_mask)
    result: tuple[Tensor | None, ...] = _backward_no_grad(*args, output_mask=output_mask)
    return result


def _in_forward_mode() -> bool:
    return getattr(forward_ad, "_current_level", -1) >= 0


def transformed() -> bool:
    """Whether derivatives or batches may be on their way that ``requires_grad`` does not tell of."""
    return _functorch_active() or _in_forward_mode()


def _save(ctx: Any, *tensors: Tensor | None) -> None:
    ctx.save_for_backward(*tensors)
    if _in_forward_mode():
        ctx.save_for_forward(*tensors)


_NO_DERIVATIVE = "truenorm: the {} of norms with a gate, modulation or partial statistics is not implemented"


def _tangent(ctx: Any, tensors: list[Any], tangents: tuple[Any, ...], options: Options | None = None) -> Tensor:
    """The tangent of y for the tangents of x, weight, bias, residual."""
    x, weight, _, residual, gate, mod_scale, mod_shift = tensors
    options = options or Options(*ctx.options)
    if any(t is not None for t in (gate, mod_scale, mod_shift)) or options.is_partial(x.shape[-1]):
        raise NotImplementedError(_NO_DERIVATIVE.format("forward derivative"))
    named = dict(zip(("x", "weight", "bias", "residual"), tangents, strict=True))
    return forward_derivative(named, x, weight, residual, options).to(ctx.y_dtype)


# ---- the two frequent ones --------------------------------------------------------------------------
# Small norms are all overhead: if nobody can differentiate the backward again, it is an operator of few arguments.


def _rms_options(ctx: Any) -> tuple[Any, ...]:
    eps, cast, offset = ctx.options
    return (0, eps, 0, cast, 0, 0, offset, 0.0, 0, 0, 1, 0, 0, 0, None, ctx.y_dtype)


def _rms_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, *ctx.options = inputs
    ctx.set_materialize_grads(False)
    _save(ctx, x, weight)
    ctx.y_dtype = output.dtype


def _rms_backward(ctx: Any, dy: Tensor | None) -> tuple[Any, ...]:
    if dy is None:
        return (None,) * 5
    x, weight = ctx.saved_tensors
    need = ctx.needs_input_grad
    if not torch.is_grad_enabled() and not _functorch_active():
        dx, dweight = _rms_once(dy, x, weight, *ctx.options, need[0] + 2 * need[1])
        return dx, dweight, None, None, None
    dx, _, _, dweight, *_ = _call_backward(
        *(dy, None, x, weight, None, None, None, None, None, None, None),
        *_rms_options(ctx),
        output_mask=[need[0], False, False, need[1], False, False, False],
    )
    return dx, dweight, None, None, None


def _rms_jvp(ctx: Any, *tangents: Any) -> Tensor:
    x, weight = ctx.saved_tensors
    return _tangent(ctx, [x, weight, *(None,) * 5], (*tangents[:2], None, None), Options(*_rms_options(ctx)))


def _layer_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, eps = inputs
    ctx.set_materialize_grads(False)
    _save(ctx, x, weight, bias)
    ctx.y_dtype = output.dtype
    ctx.options = (KIND_LAYER, eps)


def _layer_backward(ctx: Any, dy: Tensor | None) -> tuple[Any, ...]:
    if dy is None:
        return (None,) * 4
    x, weight, bias = ctx.saved_tensors
    need = ctx.needs_input_grad
    if not torch.is_grad_enabled() and not _functorch_active():
        wanted = need[0] + 2 * need[1] + 4 * need[2]
        dx, dweight, dbias = _layer_once(dy, x, weight, bias, ctx.options[1], wanted)
        return dx, dweight, dbias, None
    dx, _, _, dweight, dbias, *_ = _call_backward(
        *(dy, None, x, weight, bias, None, None, None, None, None, None),
        *ctx.options,
        output_mask=[need[0], False, False, need[1], need[2], False, False],
    )
    return dx, dweight, dbias, None


def _layer_jvp(ctx: Any, *tangents: Any) -> Tensor:
    return _tangent(ctx, [*ctx.saved_tensors, *(None,) * 4], (*tangents[:3], None))


# ---- the general ones -------------------------------------------------------------------------------


def _general_backward(
    ctx: Any, dy: Tensor | None, dsum: Tensor | None, tensors: list[Any], statistics: tuple[Any, Any]
) -> tuple[Any, ...]:
    """Gradients of the seven tensors of the schema."""
    x, residual = tensors[0], tensors[3]
    if dy is None and dsum is None:
        return (None,) * 7
    if dy is None:
        dy = torch.zeros((), dtype=x.dtype).expand(x.shape)
    need = [*ctx.needs_input_grad[:7], *(False,) * 7]  # arguments at their defaults are not among the inputs
    kept_sum = ctx.kept_sum
    same = kept_sum or (residual is not None and residual.dtype == x.dtype)
    need_dx = need[0] or (same and need[3])
    mask = [need_dx, need[3] and not same, need[4], need[1], need[2], need[5], need[6]]
    dx, dres, dgate, dweight, dbias, dscale, dshift = _call_backward(
        dy, dsum, *tensors, *statistics, *ctx.options, output_mask=mask
    )
    if same:
        dres = dx
    return (
        *(dx if need[0] else None, dweight, dbias, dres if need[3] else None),
        *(dgate, dscale, dshift),
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], y: Tensor) -> list[Any]:
    ctx.set_materialize_grads(False)
    tensors, options = split_arguments(inputs[: 7 + _OPTIONS])
    options[15] = ctx.y_dtype = y.dtype
    ctx.options = tuple(options)
    ctx.kept_sum = False
    return tensors


def _norm_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _save(ctx, *_keep(ctx, inputs, output))


def _norm_backward(ctx: Any, dy: Tensor | None) -> tuple[Any, ...]:
    grads = _general_backward(ctx, dy, None, list(ctx.saved_tensors), (None, None))
    return (*grads, *(None,) * _OPTIONS)


def _norm_jvp(ctx: Any, *tangents: Any) -> Tensor:
    return _tangent(ctx, list(ctx.saved_tensors), tangents[:4])


def _add_norm_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    y, total = output
    tensors = _keep(ctx, inputs, y)
    x, residual = tensors[0], tensors[3]
    ctx.sum_dtype = total.dtype
    if ctx.options[11] == 0 and total.dtype == x.dtype == residual.dtype:
        tensors[0], tensors[3] = total, None
        ctx.kept_sum = True
    _save(ctx, *tensors)


def _add_norm_backward(ctx: Any, dy: Tensor | None, dsum: Tensor | None) -> tuple[Any, ...]:
    grads = _general_backward(ctx, dy, dsum, list(ctx.saved_tensors), (None, None))
    return (*grads, *(None,) * _OPTIONS)


def _add_norm_jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, Tensor]:
    dx, dweight, dbias, dresidual = tangents[:4]
    terms = [t.to(ctx.sum_dtype) for t in (dx, dresidual) if t is not None]
    total = sum(terms) if terms else torch.zeros((), dtype=ctx.sum_dtype).expand(ctx.saved_tensors[0].shape)
    if ctx.kept_sum:
        dx, dresidual = total if terms else None, None
    return _tangent(ctx, list(ctx.saved_tensors), (dx, dweight, dbias, dresidual)), total


def _stats_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    y, mean, rstd = output
    tensors = _keep(ctx, inputs, y)
    ctx.mark_non_differentiable(mean, rstd)
    _save(ctx, *tensors, mean, rstd)


def _stats_backward(ctx: Any, dy: Tensor | None, dmean: None, drstd: None) -> tuple[Any, ...]:
    saved = list(ctx.saved_tensors)
    grads = _general_backward(ctx, dy, None, saved[:7], (saved[7], saved[8]))
    return (*grads, *(None,) * (_OPTIONS + 1))


def _stats_jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, None, None]:
    return _tangent(ctx, list(ctx.saved_tensors)[:7], tangents[:4]), None, None


# ---- the backward itself ----------------------------------------------------------------------------


def _double_setup(
    ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: tuple[Tensor | None, ...]
) -> None:
    ctx.set_materialize_grads(False)
    dy, dsum = inputs[:_BEFORE_TENSORS]
    x, weight, _, residual, gate, mod_scale, mod_shift = inputs[2:9]
    options = inputs[9 + _STATISTICS :]
    ctx.options = Options(*options)
    ctx.arguments = len(inputs)
    ctx.dsum_dtype = None if dsum is None else dsum.dtype
    ctx.plain = gate is None and mod_scale is None and mod_shift is None and not ctx.options.is_partial(x.shape[-1])
    ctx.save_for_backward(dy, x, weight, residual)


def _double_backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
    if not ctx.plain:
        raise NotImplementedError(_NO_DERIVATIVE.format("double backward"))
    dy, x, weight, residual = ctx.saved_tensors
    names = ("dx", "dresidual", "dgate", "dweight", "dbias", "dmod_scale", "dmod_shift")
    out = double_backward(dict(zip(names, grads, strict=True)), dy, x, weight, residual, ctx.options)
    dsum = out["dsum"].to(ctx.dsum_dtype) if ctx.dsum_dtype and out["dsum"] is not None else None
    result = [out["dy"], dsum, out["x"], out["weight"], None, out["residual"]]
    return (*result, *(None,) * (ctx.arguments - len(result)))


# ---- registration -----------------------------------------------------------------------------------


def _functions(
    name: str,
    forward: Callable[..., Any],
    setup: Callable[..., None],
    backward: Callable[..., Any],
    jvp: Callable[..., Any] | None = None,
) -> tuple[type[Function], type[Function]]:
    """The two styles of autograd.Function of one operator."""

    def joint(ctx: Any, *args: Any) -> Any:
        result = forward(*args)
        setup(ctx, args, result)
        return result

    def batched(info: Any, in_dims: Any, *args: Any) -> Any:
        return _rules[name](info, in_dims, *args)

    title = "".join(part.title() for part in name.split("_"))
    both = {"backward": backward} if jvp is None else {"backward": backward, "jvp": jvp}
    styles = ({"forward": joint}, {"forward": forward, "setup_context": setup, "vmap": batched})
    old, new = (type(title, (Function,), {k: staticmethod(v) for k, v in (both | style).items()}) for style in styles)
    return old, new


def _register(
    name: str, setup: Callable[..., None], backward: Callable[..., Any], jvp: Callable[..., Any]
) -> Callable[..., Any]:
    """Registers the derivative of an operator; returns the operator for positional arguments, all given."""
    packet = getattr(ops, name)
    op = packet.default
    torch.library.register_autograd(f"truenorm::{name}", backward, setup_context=setup)
    plain = packet.no_grad if "no_grad" in packet.overloads() else op
    old, new = _functions(name, plain, setup, backward, jvp)
    # What Function.apply comes to outside torch.func, but for a microsecond of preparations for that.
    apply_old: Callable[..., Any] = super(Function, old).apply  # type: ignore[misc]
    apply_new: Callable[..., Any] = new.apply

    def call(*args: Any) -> Any:
        if is_compiling() or _is_tracing():
            return op(*args)
        return apply_new(*args) if _functorch_active() else apply_old(*args)

    return call


rms_norm = _register("rms_norm", _rms_setup, _rms_backward, _rms_jvp)
layer_norm = _register("layer_norm", _layer_setup, _layer_backward, _layer_jvp)
norm = _register("norm", _norm_setup, _norm_backward, _norm_jvp)
add_norm = _register("add_norm", _add_norm_setup, _add_norm_backward, _add_norm_jvp)
norm_stats = _register("norm_stats", _stats_setup, _stats_backward, _stats_jvp)


# norm_backward has a keyword-only argument and results that may be None: in the Functions the mask is the last
# positional argument, and only what the mask asks for is returned.


def _masked_forward(*args: Any) -> tuple[Tensor, ...]:
    return tuple(t for t in _backward_no_grad(*args[:-1], output_mask=args[-1]) if t is not None)


def _masked_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.places = _places(inputs)
    _double_setup(ctx, inputs[:-1], {}, output)


def _masked_backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
    full: list[Tensor | None] = [None] * 7
    for place, grad in zip(ctx.places, grads, strict=True):
        full[place] = grad
    return (*_double_backward(ctx, *full), None)


def _places(inputs: tuple[Any, ...]) -> list[int]:
    """Which of the seven gradients are returned: asked for, and of an operand that is there."""
    x, weight, bias, residual, gate, mod_scale, mod_shift = inputs[2:9]
    operands = (x, residual, gate, weight, bias, mod_scale, mod_shift)
    return [k for k, (t, wanted) in enumerate(zip(operands, inputs[-1], strict=True)) if wanted and t is not None]


torch.library.register_autograd("truenorm::norm_backward", _double_backward, setup_context=_double_setup)
_backward_op = ops.norm_backward.default
_BackwardOld, _BackwardNew = _functions("norm_backward_masked", _masked_forward, _masked_setup, _masked_backward)


def norm_backward(*args: Any, output_mask: list[bool]) -> tuple[Tensor | None, ...]:
    """The operator, differentiable in every mode. Options at the end may be left out."""
    if is_compiling():
        result: tuple[Tensor | None, ...] = _backward_op(*args, output_mask=output_mask)
        return result
    _, options = split_arguments([None] * 7 + list(args[11:]))
    inputs = (*args[:11], *options, tuple(output_mask))
    function: Any = _BackwardNew if _functorch_active() else _BackwardOld
    full: list[Tensor | None] = [None] * 7
    for place, value in zip(_places(inputs), function.apply(*inputs), strict=True):
        full[place] = value
    return tuple(full)


def _masked_rule(info: Any, in_dims: Any, *args: Any) -> tuple[Any, Any]:
    result, _ = _rules["norm_backward"](info, in_dims[:-1], *args[:-1], output_mask=args[-1])
    kept = tuple(t for t in result if t is not None)
    return kept, (0,) * len(kept)


_rules = rules(sys.modules[__name__])
_rules["norm_backward_masked"] = _masked_rule
