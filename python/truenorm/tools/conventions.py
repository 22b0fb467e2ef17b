"""What a stored norm means: its kind, whether the gain is stored less one, and its eps.

Facts about the classes of transformers 5.24 and about gguf 0.19 / llama.cpp's converter. Where nothing says so, the
answer is None, never a guess; `kind` alone has a last resort (a weight without bias is taken for RMSNorm), and the
reason is reported with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

Config = Mapping[str, Any]


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NORM_NAME = re.compile(r"norm|(^|_)ln(_|\d|$)", re.IGNORECASE)
NOT_A_NORM = re.compile(r"weight_?norm|spectral_?norm|norm_proj|normaliz", re.IGNORECASE)
WEIGHTS, BIASES = ("weight", "gamma", "scale"), ("bias", "beta")

# Effective gain 1 + w: RMSNorm, and LayerNorm (every norm of the model, biased or not).
RMS_ONE_PLUS = words(
    "gemma gemma2 gemma3 gemma3_text recurrent_gemma vaultgemma t5gemma t5_gemma_module t5gemma2 t5gemma2_text "
    "t5gemma2_decoder qwen3_next qwen3_5 qwen3_5_text qwen3_5_moe qwen3_5_moe_text qwen4_exp qwen4_exp_text "
    "minimax_m3_vl minimax_m3_vl_text step3p5 step3p7"
)
LAYER_ONE_PLUS = {"nemotron", "videoprism", "moonshine_streaming"}
# Models whose classes differ in this, so that a tensor's name does not tell.
MIXED = {"muse_spark", "muse_spark_text", "muse_glimmer", "muse_glimmer_text"}
# GGUF architectures whose converter adds the one to the stored weights.
GGUF_ONE_ADDED = {"gemma", "gemma2", "gemma3", "gemma-embedding", "nemotron", "qwen3next", "qwen35", "qwen35moe"}

# Without a bias, but LayerNorm.
LAYER_WITHOUT_BIAS = words(
    "cohere cohere2 cohere2_moe cohere_compass mpt modernbert modernbert-decoder moonshine moonshine_streaming dbrx"
)
RMS_MODELS = words(
    "t5 mt5 umt5 longt5 switch_transformers pop2piano udop pix2struct idefics kosmos-2.5 mamba mamba2 "
    "falcon_mamba nemotron_h lfm2 lfm2_moe lfm3 csm moshi xlstm imagegpt"
)

# RMSNorm(rank) without eps: the class's 1e-6, whatever the config says.
LATENT_CLASS_EPS = words(
    "axk1 axk2 bailing_hybrid deepseek_v2 deepseek_v3 deepseek_v32 glm4_moe_lite glm_moe_dsa hy_v4 "
    "kimi_linear longcat_flash minicpm3 mistral4 youtu"
)
LATENT_NORM = re.compile(r"(q_a|kv_a)_(layer)?norm$")
# nn.LayerNorm(n) without eps: no key in the config, or one that the norms do not read.
TORCH_DEFAULT_EPS = words(
    "opt bart mbart pegasus pegasus_x whisper plbart marian m2m_100 blenderbot blenderbot-small "
    "speech_to_text detr conditional_detr deformable_detr moonshine moonshine_streaming xglm biogpt trocr led dbrx"
)
KEYS = {
    "rms": ("rms_norm_eps", "norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_epsilon"),
    "layer": ("layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon"),
    "batch": ("batch_norm_eps",),
    "group": ("group_norm_eps", "layer_norm_eps"),
}


def is_norm_module(module: str) -> bool:
    """Whether a module's name (its last part that is not a number) is that of a norm."""
    parts = [p for p in module.split(".") if not p.isdigit()]
    return bool(parts) and bool(NORM_NAME.search(parts[-1])) and not NOT_A_NORM.search(parts[-1])


def part_of(config: Config, module: str) -> Config:
    """The configuration of the tower that a module belongs to: multimodal models have one for each."""
    for words, key in ((("vision", "visual"), "vision_config"), (("audio",), "audio_config")):
        if any(w in module for w in words) and isinstance(config.get(key), Mapping):
            return part_of(config[key], "")
    for key in ("text_config", "llm_config", "language_config"):
        if isinstance(config.get(key), Mapping):
            merged = {k: v for k, v in config.items() if not isinstance(v, Mapping)}
            return merged | dict(config[key])
    return config


def kind_of(module: str, biased: bool, running: bool, config: Config, keys: Config) -> tuple[str, str]:
    """("rms" | "layer" | "group" | "batch", why)."""
    leaf = next(p for p in reversed(module.split(".")) if not p.isdigit()).lower()
    model = str(config.get("model_type", ""))
    if running:
        return "batch", "running statistics"
    for word, kind in (("group_norm", "group"), ("groupnorm", "group"), ("rms", "rms")):
        if word in leaf:
            return kind, "name"
    if biased:
        return "layer", "has a bias"
    if model in LAYER_WITHOUT_BIAS or model in LAYER_ONE_PLUS:
        return "layer", f"model type {model}"
    if model in RMS_MODELS or model in RMS_ONE_PLUS:
        return "rms", f"model type {model}"
    arch = str(keys.get("general.architecture", ""))
    if f"{arch}.attention.layer_norm_rms_epsilon" in keys:
        return "rms", "layer_norm_rms_epsilon"
    if f"{arch}.attention.layer_norm_epsilon" in keys:
        return "layer", "layer_norm_epsilon"
    if "rms_norm_eps" in config:
        return "rms", "rms_norm_eps"
    return "rms", "no bias (assumed)"


def offset_of(module: str, kind: str, biased: bool, config: Config, keys: Config, stored: str) -> float | None:
    """What is added to the stored weight to give the gain: 0 or 1; None if unknown. `stored`: its last name."""
    if keys:
        return 0.0  # llama.cpp's converter stores the gain itself
    model = str(config.get("model_type", ""))
    if not model or model in MIXED:
        return None
    if model == "moonshine_streaming":
        return 1.0 if stored == "gamma" else 0.0
    if model in LAYER_ONE_PLUS:
        return 1.0 if kind == "layer" else 0.0
    gated = "linear_attn.norm" in module
    return 1.0 if model in RMS_ONE_PLUS and kind == "rms" and not biased and not gated else 0.0


def eps_of(module: str, kind: str, config: Config, keys: Config) -> tuple[float | None, str]:
    """(eps, where it is from); None if nothing says."""
    if keys:
        return gguf_eps(kind, keys)
    model = str(config.get("model_type", ""))
    if model in LATENT_CLASS_EPS and LATENT_NORM.search(module):
        return 1e-6, "class default, not the config's"
    if model in ("convnext", "convnextv2") and not module.endswith("layernorm"):
        return 1e-6, "fixed in the class"
    if model == "distilbert":
        return 1e-12, "fixed in the class"
    if model == "phimoe":
        return number(config, "rms_norm_eps")
    if kind == "layer" and model in TORCH_DEFAULT_EPS:
        return 1e-5, "LayerNorm's default"
    key = next((k for k in KEYS[kind] if k in config), "")
    return number(config, key)


def gguf_eps(kind: str, keys: Config) -> tuple[float | None, str]:
    arch = keys.get("general.architecture", "")
    name = {"rms": "layer_norm_rms_epsilon", "layer": "layer_norm_epsilon", "group": "group_norm_epsilon"}.get(kind)
    key = f"{arch}.attention.{name}"
    if key not in keys:
        return None, ""
    # Stored as f32: 1e-6 and not 9.99999997e-07.
    return float(f"{float(keys[key]):.7g}"), key


def number(config: Config, key: str) -> tuple[float | None, str]:
    value = config.get(key)
    return (float(value), key) if isinstance(value, int | float) and not isinstance(value, bool) else (None, "")
