"""examples/llama against Transformers: a checkpoint that was trained in C gives the same logits there.

TRUENORM_LLAMA names the program; scripts/python.sh builds it where OpenBLAS and cJSON are there."""

import json
import os
import subprocess

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM

LLAMA = os.path.abspath(os.environ.get("TRUENORM_LLAMA", "build/examples/llama/llama"))
TEXT = b"In the beginning was the norm, and the norm was with the layer. " * 40
needs_program = pytest.mark.skipif(
    not os.path.exists(LLAMA), reason="examples/llama is not built: OpenBLAS or cJSON is missing"
)


def llama(folder, *args):
    subprocess.run([LLAMA, *args], cwd=folder, check=True, stdout=subprocess.DEVNULL)


@needs_program
@pytest.mark.parametrize(
    ("options", "name"),
    [
        (["--norm", "rms"], "LlamaForCausalLM"),
        (["--norm", "rms", "--heads", "2", "--eps", "1e-3"], "LlamaForCausalLM"),
        (["--norm", "rms", "--qk-norm", "rms"], "Qwen3ForCausalLM"),
        (["--norm", "layer"], "StableLmForCausalLM"),
    ],
)
def test_same_logits(tmp_path, options, name):
    (tmp_path / "text").write_bytes(TEXT)
    (tmp_path / "short").write_bytes(TEXT[10:60])
    llama(tmp_path, "train", "--text", "text", "--out", "run", "--steps", "40", "--rate", "0.01", *options)
    llama(tmp_path, "logits", "run/checkpoint-40", "--text", "short", "-o", "logits.safetensors")
    ours = load_file(tmp_path / "logits.safetensors")["logits"]

    model, report = AutoModelForCausalLM.from_pretrained(
        tmp_path / "run/checkpoint-40", output_loading_info=True, attn_implementation="eager"
    )
    assert type(model).__name__ == name and model.dtype == torch.float32
    assert not any(report.values())  # no weight is missing, unexpected or of another shape
    with torch.no_grad():
        theirs = model(torch.tensor([list(TEXT[10:60])])).logits[0].numpy()
    assert ours.shape == theirs.shape == (50, 256)
    assert np.abs(ours).max() > 3  # it has learnt something
    np.testing.assert_allclose(ours, theirs, atol=2e-5)
    # What the training left is far from where it began, so equality says something about every weight.
    changed = {k: v for k, v in load_file(tmp_path / "run/checkpoint-40/model.safetensors").items() if "norm" in k}
    assert all(np.abs(v - np.round(v)).max() > 1e-3 for v in changed.values())


@needs_program
@pytest.mark.parametrize("options", [["--placement", "post"], ["--norm", "none"], ["--norm", "prms:0.5"]])
def test_others_do_not_claim_to_be_of_transformers(tmp_path, options):
    (tmp_path / "text").write_bytes(TEXT)
    llama(tmp_path, "train", "--text", "text", "--out", "run", "--steps", "2", *options)
    config = json.loads((tmp_path / "run/checkpoint-2/config.json").read_text())
    assert config["model_type"] == "truenorm_llama" and "architectures" not in config
    with pytest.raises(ValueError, match="truenorm_llama"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "run/checkpoint-2")
