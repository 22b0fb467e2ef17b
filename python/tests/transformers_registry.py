"""patch() before construction: run as a script, since what is registered depends on which modules are imported.

transformers compares every name of its imported modules with every registered pattern, so this is also faster here than
in a process that has imported all families.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
from transformers import AutoModelForCausalLM, logging
from transformers.monkey_patching import apply_patches, get_patch_mapping
from transformers_models import build, config_of, inputs_of, run

from truenorm.transformers import patch, replacement_class, unpatch

MODELS = [
    ("decoder", "llama"),
    ("decoder", "gemma2"),
    ("decoder", "qwen3_next"),
    ("decoder", "falcon_mamba"),
    ("decoder", "nemotron"),
    ("other", "t5"),
    ("other", "convnext"),
]


def originals(model: nn.Module) -> list[type]:
    """The classes behind the replacements."""
    return [o for m in model.modules() if (o := type(m).__dict__.get("_truenorm_original")) is not None]


def check_construction(kind: str, name: str) -> None:
    """from_config builds the replacements: parameters and results are those of a model that is patched in place."""
    unpatch()
    in_place = build(kind, name)
    inputs = inputs_of(kind, name, torch.float32)
    plain, _ = run(in_place, inputs)
    replaced = [name for name in patch(in_place).replaced if not name.startswith("torch.")]
    report = patch()
    assert report.way == "registry"
    built = build(kind, name)
    assert sorted({f"{c.__module__}.{c.__qualname__}" for c in originals(built)}) == sorted(replaced)
    state, expected_state = built.state_dict(), in_place.state_dict()
    assert list(state) == list(expected_state)
    assert all(torch.equal(state[key], expected_state[key]) for key in state)
    got, grads = run(built, inputs, gradients=True)
    assert (got - plain).abs().max() <= 1e-5 * plain.std()
    assert all(torch.isfinite(g).all() for g in grads.values())
    patch(built)
    expected, expected_grads = run(in_place, inputs, gradients=True)
    got, grads = run(built, inputs, gradients=True)
    assert torch.equal(got, expected)
    assert all(torch.equal(grads[key], expected_grads[key]) for key in grads)
    unpatch(built)
    assert torch.equal(run(built, inputs)[0], plain)
    assert not originals(built)


def check_missing_weights(name: str, value: float) -> None:
    """from_pretrained gives a norm weight that the checkpoint lacks the value that the class's model gives it."""
    with tempfile.TemporaryDirectory() as folder:
        build("decoder", name).save_pretrained(folder)
        file = Path(folder) / "model.safetensors"
        kept = {key: value for key, value in load_file(file).items() if key != "model.norm.weight"}
        save_file(kept, file, metadata={"format": "pt"})
        patch()
        model = AutoModelForCausalLM.from_pretrained(folder)
        weight = model.model.norm.weight
        assert type(model.model.norm).__dict__["_truenorm_original"].__name__ in type(model.model.norm).__name__
        assert torch.equal(weight, torch.full_like(weight, value)), weight


def check_context_and_removal() -> None:
    """Direct construction is reached under apply_patches(); unpatch() leaves the registry as it was."""
    from transformers.models.llama.modeling_llama import LlamaForCausalLM, LlamaRMSNorm

    config = config_of("decoder", "llama")
    patch()
    assert not originals(LlamaForCausalLM(config))
    with apply_patches():
        assert originals(LlamaForCausalLM(config)) == [LlamaRMSNorm] * 5
    assert issubclass(replacement_class(LlamaRMSNorm), LlamaRMSNorm)
    finders = len(sys.meta_path)
    unpatch()
    assert get_patch_mapping() == {}
    assert len(sys.meta_path) == finders - 1
    assert not originals(AutoModelForCausalLM.from_config(config))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    for kind, name in MODELS:
        check_construction(kind, name)
    for name, value in (("llama", 1.0), ("gemma2", 0.0), ("qwen3_next", 0.0)):
        check_missing_weights(name, value)
    check_context_and_removal()
    print("registry ok")
