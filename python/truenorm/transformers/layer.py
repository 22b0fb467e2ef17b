"""Forwards of the LayerNorm classes L1 to L9, the GroupNorm classes GN1 and GN2, and torch's own (semantics.py)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from truenorm import torch as tn

from .common import bias_of, eps_of, is_half, plain, promote, round_eps, rounded_affine, weight_of

# ---- LayerNorm -----------------------------------------------------------------------------------------------------


def layer_norm(m: Any, x: Tensor) -> Any:
    """torch.nn.LayerNorm and subclasses that only add a name."""
    shape = m.normalized_shape
    one_axis = len(shape) == 1 and x.shape[-1] == shape[0]
    return tn.layer_norm(x, None if one_axis else shape, weight_of(m), bias_of(m), eps_of(m, x))


def rms_norm(m: Any, x: Tensor) -> Any:
    """torch.nn.RMSNorm; eps None is torch's rule."""
    return tn.rms_norm(x, m.normalized_shape, weight_of(m), None if m.eps is None else eps_of(m, x))


def _over_dim1(m: Any, x: Tensor, **options: Any) -> Any:
    """LayerNorm over dim 1 of [N, C, ...]; the view goes to the kernel as it is."""
    last_to_first = (0, x.dim() - 1, *range(1, x.dim() - 1))
    first_to_last = (0, *range(2, x.dim()), 1)
    y = tn.norm(x.permute(first_to_last), weight_of(m), bias_of(m), kind="layer", eps=eps_of(m, x), **options)
    return y.permute(last_to_first)


def layer_norm_data_format(m: Any, x: Tensor) -> Any:
    """L1: ConvNeXt and SAM say channels first by an attribute."""
    if getattr(m, "data_format", "channels_last") != "channels_first":
        return layer_norm(m, x)
    return _over_dim1(m, x) if x.dim() == 4 else NotImplemented


def layer_norm_dim1(m: Any, x: Tensor) -> Any:
    """L9: always dim 1."""
    return _over_dim1(m, x)


def layer_norm_dim1_native(m: Any, x: Tensor) -> Any:
    """L9: VitDet, in the input's dtype."""
    if is_half(x) or x.dim() != 4:
        return NotImplemented
    return _over_dim1(m, x, out_dtype=promote(x, weight_of(m), bias_of(m)))


def layer_norm_f32(m: Any, x: Tensor) -> Any:
    """L2 (no bias, weight [n] or [heads, n]) and EsmFold2's of L6."""
    return tn.layer_norm(x, None, weight_of(m), bias_of(m), eps_of(m, x))


def layer_norm_fixed(m: Any, x: Tensor) -> Any:
    """L3: OLMo; eps is written into the class."""
    return tn.norm(x, kind="layer", eps=round_eps(1e-5, x))


def layer_norm_1p(m: Any, x: Tensor) -> Any:
    """L4: Nemotron and VideoPrism; 1 + weight is rounded to the weight's dtype. Autocast is left to the class."""
    if torch.is_autocast_enabled():
        return NotImplemented
    return tn.norm(
        x,
        weight_of(m),
        bias_of(m),
        kind="layer",
        eps=eps_of(m, x),
        weight_offset=1.0,
        round_offset=True,
        out_dtype=x.dtype,
    )


def layer_norm_moonshine(m: Any, x: Tensor) -> Any:
    """L4: Moonshine Streaming; a LayerNorm without parameters, rounded, times gamma + offset."""
    if not plain(m.ln, nn.LayerNorm):
        return NotImplemented
    return tn.norm(
        x,
        m.gamma,
        kind="layer",
        eps=eps_of(m.ln, x),
        cast="before_scale",
        weight_offset=m.unit_offset,
        round_offset=True,
    )


def layer_norm_rounded_affine(m: Any, x: Tensor) -> Any:
    """L5: DeBERTa."""
    return rounded_affine(x, weight_of(m), bias_of(m), "layer", eps_of(m, x))


def layer_norm_chameleon(m: Any, x: Tensor) -> Any:
    """L5: weight and bias are [heads, n]; the class computes with 1e-5 whatever its eps says."""
    return rounded_affine(x, weight_of(m), bias_of(m), "layer", round_eps(1e-5, x))


def layer_norm_esmfold(m: Any, x: Tensor) -> Any:
    """L6: EsmFold rounds its parameters when x is bf16."""
    w, b = weight_of(m), bias_of(m)
    if x.dtype == torch.bfloat16:
        w, b = (None if p is None else p.to(x.dtype) for p in (w, b))
    return tn.norm(x, w, b, kind="layer", eps=eps_of(m, x))


def layer_norm_native(m: Any, x: Tensor) -> Any:
    """L7."""
    if is_half(x):
        return NotImplemented
    w, b = (weight_of(m), bias_of(m)) if m.elementwise_affine else (None, None)
    return tn.norm(x, w, b, kind="layer", eps=eps_of(m, x), out_dtype=promote(x, w, b))


def xlstm_multi_head(m: Any, x: Tensor) -> Any:
    """L8: [batch, sequence, heads, n] in, [batch, sequence, heads n] out; weight and bias are [heads n]."""
    heads, n = m.num_heads, m.head_dim
    if x.dim() != 4 or tuple(x.shape[2:]) != (heads, n) or (is_half(x) and not m.force_float32_reductions):
        return NotImplemented
    w, b = (None if p is None else p.view(heads, n) for p in (weight_of(m), bias_of(m)))
    if w is None and b is not None:
        y = tn.norm(x, kind="layer", eps=eps_of(m, x)) + b
    else:
        y = rounded_affine(x, w, b, "layer", eps_of(m, x))
    return y.reshape(x.shape[0], x.shape[1], -1)


def stablelm_per_head(m: Any, x: Tensor) -> Any:
    """L8: [batch, heads, sequence, n], one LayerNorm a head; their parameters are stacked to [heads, n]."""
    norms = list(m.norms)
    if x.dim() != 4 or len(norms) != x.shape[1] or not all(plain(n, nn.LayerNorm) for n in norms):
        return NotImplemented
    w = None if norms[0].weight is None else torch.stack([n.weight for n in norms])
    b = None if norms[0].bias is None else torch.stack([n.bias for n in norms])
    return tn.norm(x.transpose(1, 2), w, b, kind="layer", eps=eps_of(norms[0], x)).transpose(1, 2)


# ---- GroupNorm -----------------------------------------------------------------------------------------------------


def group_norm(m: Any, x: Tensor) -> Any:
    """torch.nn.GroupNorm."""
    return tn.group_norm(x, m.num_groups, weight_of(m), bias_of(m), eps_of(m, x))


def group_norm_activation(m: Any, x: Tensor) -> Any:
    """GN1: BiT."""
    return m.activation(group_norm(m, x))


def group_norm_emu3(m: Any, x: Tensor, quant_states: Tensor | None = None) -> Any:
    """GN1: the second argument is not used."""
    return group_norm(m, x)


def group_norm_masked(m: Any, x: Tensor, padding_mask: Tensor | None = None) -> Any:
    """GN2: with a mask the class's own forward runs."""
    return group_norm(m, x) if padding_mask is None else NotImplemented
