"""The forward of each group of norm classes, in terms of truenorm.torch.

A forward here takes the module and its tensors and returns what the class returns, in the class's dtype. It returns
NotImplemented where the class's own forward must run: for 16-bit inputs of the groups that compute in the input's
dtype (each of their operations rounds, which no kernel can do for them), for activations other than silu and sigmoid,
and for inner modules that carry hooks or that someone else replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import adaptive, layer, rms

__all__ = ["CLASS_FORWARDS", "GROUP_FORWARDS", "Forward"]

Forward = Callable[..., Any]

#: what serves a group; a class named in CLASS_FORWARDS has its own, and G5 is served by the norm inside it
GROUP_FORWARDS: dict[str, Forward] = {
    "R1": rms.rms_rounded_then_scaled,
    "R2": rms.rms_scaled_in_f32,
    "R3": rms.rms_zero_centred,
    "R3b": rms.rms_zero_centred_rounded,
    "R4": rms.rms_t5,
    "R5": rms.rms_no_weight,
    "R6": rms.rms_rounded_rstd,
    "R7": rms.inverse_rms,
    "R8": rms.l2,
    "R9": rms.rms_native,
    "R10": rms.rms_input_scaled,
    "R11": rms.rms_unbiased,
    "R12": rms.rms_grouped,
    "G1": rms.gated_mamba2,
    "G2": rms.gated_falcon_h1,
    "G3": rms.gated_three_roundings,
    "G4": rms.gated_one_rounding,
    "L1": layer.layer_norm_data_format,
    "L2": layer.layer_norm_f32,
    "L3": layer.layer_norm_fixed,
    "L4": layer.layer_norm_1p,
    "L5": layer.layer_norm_rounded_affine,
    "L6": layer.layer_norm_f32,
    "L7": layer.layer_norm_native,
    "L9": layer.layer_norm_dim1,
    "GN1": layer.group_norm,
    "GN2": layer.group_norm_masked,
    "Q1": adaptive.query_key_norm,
}

CLASS_FORWARDS: dict[str, Forward] = {
    "xLSTMRMSNorm": rms.xlstm_rms,
    "MoonshineStreamingLayerNorm": layer.layer_norm_moonshine,
    "ChameleonLayerNorm": layer.layer_norm_chameleon,
    "EsmFoldLayerNorm": layer.layer_norm_esmfold,
    "xLSTMMultiHeadLayerNorm": layer.xlstm_multi_head,
    "StableLmLayerNormPerHead": layer.stablelm_per_head,
    "VitDetLayerNorm": layer.layer_norm_dim1_native,
    "BitGroupNormActivation": layer.group_norm_activation,
    "Emu3VQVAEGroupNorm": layer.group_norm_emu3,
    "Emu3VQVAESpatialNorm": adaptive.adaptive_emu3,
    "EsmFold2AdaptiveLayerNorm": adaptive.adaptive_esmfold2,
    "Qwen2_5_OmniAdaLayerNormZero": adaptive.adaptive_omni,
    "Qwen2_5_OmniAdaLayerNormZero_Final": adaptive.adaptive_omni_final,
    "VibeVoiceDiffusionHeadAdaLayerNorm": adaptive.adaptive_vibevoice,
    "WavTokenizerAdaLayerNorm": adaptive.adaptive_wavtokenizer,
}
