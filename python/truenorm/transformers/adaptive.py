"""Forwards of the adaptive classes A1 and of the query and key norm Q1 (semantics.py)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from truenorm import torch as tn

from .common import Kind, eps_of, is_half, plain, promote, rounded_affine
from .layer import group_norm

# ---- adaptive ------------------------------------------------------------------------------------------------------


def adaptive_emu3(m: Any, x: Tensor, quant_states: Tensor) -> Any:
    """A1: GroupNorm(x) * conv_y(q) + conv_b(q)."""
    if not plain(m.norm_layer, nn.GroupNorm):
        return NotImplemented
    q = nn.functional.interpolate(quant_states, size=x.shape[-2:], mode="nearest")
    y = group_norm(m.norm_layer, x)
    return y * m.conv_y(q) + m.conv_b(q)


def adaptive_esmfold2(m: Any, x: Tensor, single_states: Tensor) -> Any:
    """A1: sigmoid(gate) * LN(x) + shift in f32, rounded once."""
    normed = tn.norm(x.float(), kind="layer", eps=eps_of(m, x))
    condition = m.cond_norm(single_states)
    gate = torch.sigmoid(m.gate_proj(condition))
    return (gate * normed + m.shift_proj(condition)).to(x.dtype)


def _modulated(x: Tensor, w: Tensor | None, kind: Kind, eps: float, scale: Tensor, shift: Tensor) -> Any:
    """norm(x) * (1 + scale) + shift in one call; 16-bit tensors round in between, so they are left to the class."""
    if any(t is not None and t.dtype not in (torch.float32, torch.float64) for t in (x, w, scale, shift)):
        return NotImplemented
    return tn.norm(x, w, kind=kind, eps=eps, mod_scale=scale, mod_shift=shift)


def _omni_parts(m: Any, x: Tensor, emb: Tensor, parts: int) -> tuple[Tensor, ...] | None:
    """The chunks of the embedding, or None where the class's own forward must run."""
    if is_half(x) or x.dim() != 3 or not plain(m.norm, nn.LayerNorm):
        return None
    return tuple(torch.chunk(m.linear(m.silu(emb)), parts, dim=1))


def adaptive_omni(m: Any, x: Tensor, emb: Tensor | None = None) -> Any:
    """A1: Qwen2.5-Omni; scale and shift [batch, n] serve every token of a sample."""
    parts = None if emb is None else _omni_parts(m, x, emb, 6)
    if parts is None:
        return NotImplemented
    shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = parts
    y = _modulated(x, None, "layer", eps_of(m.norm, x), scale_msa[:, None], shift_msa[:, None])
    return NotImplemented if y is NotImplemented else (y, gate_msa, shift_mlp, scale_mlp, gate_mlp)


def adaptive_omni_final(m: Any, x: Tensor, emb: Tensor) -> Any:
    """A1: the last layer's has only a scale and a shift."""
    parts = _omni_parts(m, x, emb, 2)
    if parts is None:
        return NotImplemented
    scale, shift = parts
    return _modulated(x, None, "layer", eps_of(m.norm, x), scale[:, None], shift[:, None])


def adaptive_vibevoice(m: Any, x: Tensor, condition: Tensor) -> Any:
    """A1: R1, then modulation, an MLP and a gated residual; the inner norm serves 16-bit inputs."""
    if is_half(x) or not plain(m.norm, nn.Module) or type(m.norm).__name__ != "VibeVoiceRMSNorm":
        return NotImplemented
    shift, scale, gate = m.linear(m.act_fn(condition)).chunk(m.num_chunks, dim=-1)
    if scale.shape != x.shape:
        return NotImplemented
    y = _modulated(x, m.norm.weight, "rms", eps_of(m.norm, x), scale, shift)
    return NotImplemented if y is NotImplemented else x + gate * m.ffn(y)


def adaptive_wavtokenizer(m: Any, x: Tensor, cond_embedding_id: Tensor) -> Any:
    """A1: scale and shift are rows of embeddings, one for all tokens; each step rounds."""
    scale, shift = m.scale(cond_embedding_id), m.shift(cond_embedding_id)
    n = x.shape[-1]
    eps = eps_of(m, x)
    if scale.numel() == n:
        return rounded_affine(x, scale.reshape(n), shift.reshape(n), "layer", eps)
    return tn.norm(x, kind="layer", eps=eps) * scale + shift


def query_key_norm(m: Any, query: Tensor, key: Tensor) -> Any:
    """Q1: Zaya; eps bounds the length from below, and keys have a factor per head."""
    if is_half(query) or is_half(key):
        return NotImplemented
    eps = torch.finfo(query.dtype).eps
    n, root = key.shape[-1], m.head_dim_scale
    key_scale = (m.temp * root)[:, None].expand(-1, n)
    q = tn.norm(query, query.new_full((n,), root), kind="l2", eps=eps, eps_mode="clamp")
    return q, tn.norm(key, key_scale, kind="l2", eps=eps, eps_mode="clamp", out_dtype=promote(key, m.temp))
