"""Forwards of the RMS classes, R1 to R12 and gated G1 to G4 (semantics.py)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from truenorm import torch as tn

from .common import bias_of, eps_of, is_half, promote, rounded_affine, weight_of

_ACTIVATIONS = {"silu": "silu", "swish": "silu", "sigmoid": "sigmoid"}

# ---- RMS -----------------------------------------------------------------------------------------------------------


def rms_rounded_then_scaled(m: Any, x: Tensor) -> Any:
    """R1: Llama and most of its kin."""
    return tn.rms_norm(x, None, weight_of(m), eps_of(m, x), cast="before_scale")


def rms_scaled_in_f32(m: Any, x: Tensor) -> Any:
    """R2: OLMo2, GPT-OSS, Gemma 3n and 4; some of them have no weight."""
    return tn.rms_norm(x, None, weight_of(m), eps_of(m, x))


def rms_zero_centred(m: Any, x: Tensor) -> Any:
    """R3: Gemma, Qwen3-Next."""
    return tn.rms_norm(x, None, weight_of(m), eps_of(m, x), weight_offset=1.0)


def rms_zero_centred_rounded(m: Any, x: Tensor) -> Any:
    """R3b: 1 + weight is rounded to the weight's dtype."""
    return tn.norm(x, weight_of(m), kind="rms", eps=eps_of(m, x), weight_offset=1.0, round_offset=True)


def rms_t5(m: Any, x: Tensor) -> Any:
    """R4: the statistics are f32 for every x, so only f64 changes the default dtype of the result."""
    w: Tensor = m.weight
    if is_half(w) or promote(x, w) != torch.float64:
        return tn.rms_norm(x, None, w, eps_of(m, x), cast="t5")
    return tn.norm(x, w, kind="rms", eps=eps_of(m, x), cast="t5", out_dtype=torch.float64)


def rms_no_weight(m: Any, x: Tensor) -> Any:
    """R5: a weight buffer of ones that FalconMamba carries is not read."""
    return tn.rms_norm(x, None, None, eps_of(m, x))


def rms_rounded_rstd(m: Any, x: Tensor) -> Any:
    """R6: DeepSeek V4's."""
    return tn.norm(x, kind="rms", eps=eps_of(m, x), round_rstd=True)


def _inverse_rms(x: Tensor, eps: float, divisor: float | None = None) -> Tensor:
    """1 / sqrt(mean(x^2) + eps), [..., 1]: the normalised value of a 1 after the row, which the mean leaves out."""
    n = x.shape[-1]
    row = torch.cat((x, x.new_ones(*x.shape[:-1], 1)), dim=-1)
    h: Tensor = tn.norm(row, kind="rms", eps=eps, partial=n, divisor=divisor)
    return h[..., n:]


def inverse_rms(m: Any, x: Tensor) -> Any:
    """R7: HunYuan V4's class returns the factor only."""
    return _inverse_rms(x, eps_of(m, x))


def l2(m: Any, x: Tensor) -> Any:
    """R8."""
    return tn.norm(x, kind="l2", eps=eps_of(m, x))


def rms_native(m: Any, x: Tensor) -> Any:
    """R9: ImageGPT and Gradium."""
    if is_half(x):
        return NotImplemented
    w = weight_of(m)
    return tn.norm(x, w, kind="rms", eps=eps_of(m, x), out_dtype=promote(x, w))


def rms_input_scaled(m: Any, x: Tensor) -> Any:
    """R10: the weight comes first, and its product is rounded."""
    scaled = (x.float() * (1.0 + m.weight).float()).type_as(x)
    return tn.norm(scaled, kind="rms", eps=eps_of(m, x))


def rms_unbiased(m: Any, x: Tensor) -> Any:
    """R11: the centred, unbiased variance scales an x that is not centred."""
    if is_half(x):
        return NotImplemented
    centred = x - x.mean(-1, keepdim=True)
    return x * (m.weight * _inverse_rms(centred, eps_of(m, x), divisor=x.shape[-1] - 1))


def rms_grouped(m: Any, x: Tensor) -> Any:
    """R12: group_size None is one group."""
    group: int | None = m.group_size
    return tn.norm(x, weight_of(m), kind="rms", eps=eps_of(m, x), weight_offset=1.0, group=group)


def xlstm_rms(m: Any, x: Tensor) -> Any:
    """R1 with an optional weight and bias."""
    if is_half(x) and not m.force_float32_reductions:
        return NotImplemented
    w, b = weight_of(m), bias_of(m)
    if w is None and b is not None:
        return tn.norm(x, kind="rms", eps=eps_of(m, x)) + b
    return rounded_affine(x, w, b, "rms", eps_of(m, x))


# ---- gated RMS -----------------------------------------------------------------------------------------------------


def gated_mamba2(m: Any, x: Tensor, gate: Tensor | None = None) -> Any:
    """G1: silu(gate) first, then R1 over groups."""
    return tn.norm(
        x,
        weight_of(m),
        kind="rms",
        eps=eps_of(m, x),
        cast="before_scale",
        group=m.group_size,
        gate=gate,
        gate_order="before",
        act="silu",
    )


def gated_falcon_h1(m: Any, x: Tensor, gate: Tensor | None = None) -> Any:
    """G2: the gate's place is an attribute."""
    return tn.norm(
        x,
        weight_of(m),
        kind="rms",
        eps=eps_of(m, x),
        group=x.shape[-1] // m.n_groups,
        gate=gate,
        gate_order="after" if m.norm_before_gate else "before",
        act="silu",
    )


def gated_three_roundings(m: Any, x: Tensor, gate: Tensor | None = None) -> Any:
    """G3: the product with the weight is rounded to promote(x, weight), which is x's dtype or holds every f32."""
    act = _ACTIVATIONS.get(m.activation)
    if gate is None or act is None:
        return NotImplemented
    return tn.norm(
        x,
        weight_of(m),
        kind="rms",
        eps=eps_of(m, x),
        cast="before_scale",
        round_product=promote(x, weight_of(m)) == x.dtype,
        gate=gate,
        gate_order="after",
        act=act,
        out_dtype=x.dtype,
    )


def gated_one_rounding(m: Any, x: Tensor, gate: Tensor | None = None) -> Any:
    """G4: Kimi, Bailing and GLM use a sigmoid, LaraMini silu."""
    act = _ACTIVATIONS.get(m.activation)
    if gate is None or act is None:
        return NotImplemented
    return tn.norm(x, weight_of(m), kind="rms", eps=eps_of(m, x), gate=gate, gate_order="after", act=act)
