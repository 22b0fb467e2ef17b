"""Small checkpoints, written by the libraries that own the formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

F32, F16, BF16 = np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)


def gains(n: int, seed: int = 0, centre: float = 1.0, dtype: Any = F32) -> Any:
    return np.random.default_rng(seed).normal(centre, 0.1, n).astype(np.float32).astype(dtype)


def write_safetensors(path: Path, tensors: dict[str, Any], config: dict[str, Any] | None = None) -> Path:
    from safetensors.numpy import save_file

    save_file(tensors, path)
    if config is not None:
        (path.parent / "config.json").write_text(json.dumps(config))
    return path


def llama_like(layers: int = 3, n: int = 32, dtype: Any = BF16) -> dict[str, Any]:
    tensors = {"model.norm.weight": gains(n, 99, dtype=dtype), "lm_head.weight": np.ones((4, n), np.float32)}
    for i in range(layers):
        for j, role in enumerate(("input_layernorm", "post_attention_layernorm")):
            tensors[f"model.layers.{i}.{role}.weight"] = gains(n, 10 * i + j, dtype=dtype)
        tensors[f"model.layers.{i}.self_attn.q_proj.weight"] = np.ones((n, n), np.float32)
    return tensors


def write_gguf(path: Path, arch: str, tensors: dict[str, Any], **keys: float) -> Path:
    from gguf import GGUFWriter

    writer = GGUFWriter(path, arch)
    for key, value in keys.items():
        writer.add_float32(f"{arch}.attention.{key}", value)
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
