"""Tiny models of many families, built from configurations alone: random weights, hidden size 64, a few layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedConfig

_BASE: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_HEAD = {"head_dim": 16}
_MOE = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_MLA = {
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
}
_MAMBA2 = {"mamba_d_head": 16, "mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 16, "mamba_chunk_size": 16}

DECODERS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": _HEAD,
    "mixtral": _MOE,
    "qwen2": {},
    "qwen3": _HEAD,
    "qwen3_next": {
        **_HEAD,
        **_MOE,
        "num_hidden_layers": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "shared_expert_intermediate_size": 32,
    },
    "gemma": _HEAD,
    "gemma2": {**_HEAD, "query_pre_attn_scalar": 16},
    "gemma3_text": {**_HEAD, "query_pre_attn_scalar": 16, "sliding_window": 16},
    "olmo": {},
    "olmo2": {},
    "olmo3": {},
    "phi": {},
    "phi3": {"original_max_position_embeddings": 64},
    "granite": {},
    "cohere": {},
    "cohere2": _HEAD,
    "stablelm": {"qk_layernorm": True},
    "starcoder2": {},
    "smollm3": {},
    "exaone4": _HEAD,
    "gpt_oss": {**_HEAD, **_MOE},
    "deepseek_v2": {**_MLA, "num_key_value_heads": 4},
    "deepseek_v3": {**_MLA, "num_key_value_heads": 4},
    "mamba": {"state_size": 8},
    "mamba2": {"n_groups": 2, "head_dim": 16, "num_heads": 8, "state_size": 16, "chunk_size": 16},
    "falcon_mamba": {"state_size": 8},
    "jamba": {**_MOE, "num_hidden_layers": 4, "attn_layer_offset": 1, "attn_layer_period": 2, "mamba_dt_rank": 8},
    "bamba": {**_MAMBA2, "attn_layer_indices": [1]},
    "falcon_h1": {**_HEAD, **_MAMBA2, "mamba_d_ssm": 128, "mamba_rms_norm": True},
    "gpt2": {"n_embd": 64, "n_head": 4, "n_layer": 2},
    "gpt_neox": {},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "bloom": {"n_layer": 2, "n_head": 4},
    "falcon": {},
    "nemotron": _HEAD,
    "recurrent_gemma": {**_HEAD, "num_hidden_layers": 3, "lru_width": 64, "attention_window_size": 16},
    "helium": _HEAD,
    "nanochat": {},
    "llama4_text": {**_HEAD, **_MOE, "intermediate_size_mlp": 96},
    "lfm2": {"full_attn_idxs": [1], "block_auto_adjust_ff_dim": False},
    "glm4": _HEAD,
    "minimax_m2": {**_HEAD, **_MOE, "rotary_dim": 8},
    "bert": {"is_decoder": True},
    "modernbert-decoder": {},
}

_VISION = {**_BASE, "image_size": 16, "patch_size": 8, "num_channels": 3}
_SEQ2SEQ = {
    "vocab_size": 128,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "decoder_start_token_id": 1,
}
_T5 = {"vocab_size": 128, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4, "pad_token_id": 0}
_T5 |= {"decoder_start_token_id": 1}
_GEMMA_PART = {**_BASE, **_HEAD, "query_pre_attn_scalar": 16}
_CONVNEXT = {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1], "image_size": 32, "drop_path_rate": 0.0}

OTHERS: dict[str, dict[str, Any]] = {
    "t5": _T5,
    "mt5": _T5,
    "bart": _SEQ2SEQ,
    "whisper": {**_SEQ2SEQ, "num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 64},
    "vit": _VISION,
    "convnext": _CONVNEXT,
    "convnextv2": _CONVNEXT,
    "swin": {
        "image_size": 32,
        "patch_size": 4,
        "embed_dim": 16,
        "depths": [1, 1],
        "num_heads": [2, 4],
        "window_size": 4,
    },
    "wav2vec2": {
        **_BASE,
        "conv_dim": [32, 32],
        "conv_kernel": [10, 3],
        "conv_stride": [5, 2],
        "num_feat_extract_layers": 2,
    },
    "bert": _BASE,
    "deberta": {**_BASE, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "deberta-v2": {**_BASE, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "norm_rel_ebd": "layer_norm"},
    "modernbert": _BASE,
    "clip_vision_model": _VISION,
    "siglip_vision_model": _VISION,
    "dinov2": _VISION,
    "imagegpt": {"vocab_size": 128, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 4},
    "t5gemma": {
        "encoder": _GEMMA_PART,
        "decoder": {**_GEMMA_PART, "cross_attention_hidden_size": 64},
        "vocab_size": 128,
    },
}
OTHERS["wav2vec2"] |= {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4, "mask_time_prob": 0.0}
_SEQ2SEQ_NAMES = ("t5", "mt5", "bart", "t5gemma")
_IMAGES = {"vit": 16, "convnext": 32, "convnextv2": 32, "swin": 32, "clip_vision_model": 16, "siglip_vision_model": 16}
_IMAGES |= {"dinov2": 16}

_DROPOUT = ("layerdrop", "embd_pdrop", "resid_pdrop", "attn_pdrop", "drop_path_rate")

ALL = [("decoder", name) for name in DECODERS] + [("other", name) for name in OTHERS]


def config_of(kind: str, name: str) -> PreTrainedConfig:
    """The configuration of a tiny model; dropout off."""
    values = {**_BASE, **DECODERS[name]} if kind == "decoder" else dict(OTHERS[name])
    config = AutoConfig.for_model(name, **values)
    for part in (config, *(getattr(config, sub, None) for sub in getattr(config, "sub_configs", {}))):
        for key in list(vars(part) if part is not None else {}):
            if ("dropout" in key or key in _DROPOUT) and isinstance(getattr(part, key), float):
                setattr(part, key, 0.0)
    return config


def _auto(kind: str, name: str) -> Any:
    if kind == "decoder":
        return AutoModelForCausalLM
    return AutoModelForSeq2SeqLM if name in _SEQ2SEQ_NAMES else AutoModel


def build(kind: str, name: str) -> nn.Module:
    """from_config with a fixed seed; then norm parameters are perturbed: 1 and 0 hide offsets and cast points."""
    torch.manual_seed(0)
    model: nn.Module = _auto(kind, name).from_config(config_of(kind, name))
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in model.modules():
            if "norm" in type(module).__name__.lower():
                for p in module.parameters(recurse=False):
                    p.add_(torch.randn(p.shape, generator=g) * 0.2)
    return model.eval()


def inputs_of(kind: str, name: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """Inputs of two samples."""
    g = torch.Generator().manual_seed(2)
    ids = torch.randint(3, 128, (2, 12), generator=g)
    if kind == "decoder" or name in ("bert", "deberta", "deberta-v2", "modernbert", "imagegpt"):
        return {"input_ids": ids}
    if name in _SEQ2SEQ_NAMES:
        return {"input_ids": ids, "decoder_input_ids": ids[:, :7]}
    if name in _IMAGES:
        return {"pixel_values": torch.randn(2, 3, _IMAGES[name], _IMAGES[name], generator=g).to(dtype)}
    if name == "whisper":
        features = torch.randn(2, 8, 32, generator=g).to(dtype)
        return {"input_features": features, "decoder_input_ids": ids[:, :7]}
    return {"input_values": torch.randn(2, 400, generator=g).to(dtype)}


def run(model: nn.Module, inputs: dict[str, Tensor], gradients: bool = False) -> tuple[Tensor, dict[str, Tensor]]:
    """The first floating output, and with `gradients` those of all parameters for a fixed random direction."""
    model.zero_grad(set_to_none=True)
    with torch.set_grad_enabled(gradients):
        out = next(v for v in model(**inputs, return_dict=True).values() if isinstance(v, Tensor))
    if not gradients:
        return out, {}
    g = torch.Generator().manual_seed(3)
    (out * torch.randn(out.shape, generator=g).to(out.dtype)).sum().backward()
    return out.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
