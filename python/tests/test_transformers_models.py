"""Tiny models with all norms replaced, against themselves: outputs, gradients, training, compilation, restoration."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers_models import ALL, build, inputs_of, run

from truenorm.transformers import PatchError, patch, replacement_class, unpatch

pytestmark = pytest.mark.filterwarnings("ignore")
IDS = [f"{kind}-{name}" for kind, name in ALL]


def relative(a: Tensor, b: Tensor) -> float:
    """|a - b| / |b| in the Euclidean norm."""
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


def flat(grads: dict[str, Tensor]) -> Tensor:
    """All gradients as one vector: those of key biases are zero but for rounding, so single tensors tell nothing."""
    return torch.cat([g.double().flatten() for g in grads.values()])


@pytest.mark.parametrize(("kind", "name"), ALL, ids=IDS)
def test_patched_in_place(kind: str, name: str) -> None:
    """f32: outputs within 1e-5, gradients within 1e-5 of the whole; unpatch gives the bits back."""
    model, inputs = build(kind, name), inputs_of(kind, name, torch.float32)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    classes = [type(m) for m in model.modules()]
    expected, expected_grads = run(model, inputs, gradients=True)
    report = patch(model, strict=True)
    assert report.count >= 3
    got, grads = run(model, inputs, gradients=True)
    assert got.dtype == expected.dtype
    assert (got - expected).abs().max() <= 1e-5 * expected.std()
    assert grads.keys() == expected_grads.keys()
    assert relative(flat(grads), flat(expected_grads)) <= 1e-5
    unpatch(model)
    assert [type(m) for m in model.modules()] == classes
    again, again_grads = run(model, inputs, gradients=True)
    assert torch.equal(again, expected)
    assert all(torch.equal(again_grads[key], expected_grads[key]) for key in grads)
    assert list(model.state_dict()) == list(state)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize(("kind", "name"), ALL, ids=IDS)
def test_patched_bf16(kind: str, name: str) -> None:
    """bf16: no further from the f32 model than the unpatched bf16 model, outputs within 1 % of it, gradients 3 %."""
    model = build(kind, name)
    exact, _ = run(model, inputs_of(kind, name, torch.float32))
    model.to(torch.bfloat16)
    inputs = inputs_of(kind, name, torch.bfloat16)
    expected, expected_grads = run(model, inputs, gradients=True)
    patch(model, strict=True)
    got, grads = run(model, inputs, gradients=True)
    assert got.dtype == expected.dtype
    assert relative(got, expected) <= 0.01
    assert relative(got, exact) <= relative(expected, exact) + 2e-3
    assert relative(flat(grads), flat(expected_grads)) <= 0.03


def test_registry() -> None:
    """patch() before construction, in a process of its own (see transformers_registry.py)."""
    script = Path(__file__).with_name("transformers_registry.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-1] == "registry ok"


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
def test_training(name: str) -> None:
    """Ten steps of Adam: the loss falls as without, and the parameters stay close."""
    losses = {}
    for patched in (False, True):
        model, inputs = build("decoder", name), inputs_of("decoder", name, torch.float32)
        if patched:
            patch(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        model.train()
        history = []
        for _ in range(10):
            optimizer.zero_grad()
            loss = model(**inputs, labels=inputs["input_ids"]).loss
            loss.backward()
            optimizer.step()
            history.append(loss.item())
        losses[patched] = history
    assert losses[True][-1] < 0.6 * losses[True][0]
    assert losses[True] == pytest.approx(losses[False], rel=1e-3)


@pytest.mark.parametrize("name", ["llama", "gpt2", "stablelm"])
def test_compile_without_graph_breaks(name: str) -> None:
    """torch.compile: no graph break with our norms, as there is none without."""
    model, inputs = build("decoder", name), inputs_of("decoder", name, torch.float32)
    patch(model, strict=True)
    explained = torch._dynamo.explain(model)(**inputs, use_cache=False)
    torch._dynamo.reset()
    assert explained.graph_break_count == 0


def test_compiled_equals_eager() -> None:
    """A tiny Llama compiled as one graph: the same logits and gradients."""
    model, inputs = build("decoder", "llama"), inputs_of("decoder", "llama", torch.float32)
    patch(model, strict=True)
    eager, eager_grads = run(model, inputs, gradients=True)
    model.forward = torch.compile(model.forward, backend="aot_eager", fullgraph=True)
    compiled, grads = run(model, inputs, gradients=True)
    torch._dynamo.reset()
    assert relative(compiled, eager) <= 1e-6
    assert relative(flat(grads), flat(eager_grads)) <= 1e-6


def test_keeps_what_is_attached() -> None:
    """Hooks, attributes, parameters and isinstance checks stay; copies and pickles of a patched model work."""
    model, inputs = build("decoder", "llama"), inputs_of("decoder", "llama", torch.float32)
    norm = model.model.norm
    cls, weight = type(norm), norm.weight
    seen: list[torch.Size] = []
    norm.register_forward_hook(lambda module, args, out: seen.append(out.shape))
    patch(model)
    assert isinstance(norm, cls)
    assert type(norm).__name__ == "LlamaRMSNorm"
    assert norm.weight is weight
    assert norm.variance_epsilon == model.config.rms_norm_eps
    expected, _ = run(model, inputs)
    assert seen == [torch.Size((2, 12, 64))]
    norm._forward_hooks.clear()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(twin.model.norm) is replacement_class(cls)
        assert torch.equal(run(twin, inputs)[0], expected)
    assert patch(model).count == 5


def test_report_and_strict() -> None:
    """What is left is named with a reason; strict leaves everything as it was."""

    class OddNorm(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    model = nn.ModuleDict(
        {"a": nn.LayerNorm(8), "b": nn.BatchNorm1d(8), "c": OddNorm(), "d": nn.RMSNorm(8), "e": nn.Linear(8, 8)}
    )
    model["d"].forward = nn.RMSNorm(8).forward
    with pytest.raises(PatchError, match="BatchNorm1d") as caught:
        patch(model, strict=True)
    assert type(model["a"]) is nn.LayerNorm
    report = patch(model)
    assert {name.rsplit(".", 1)[-1]: e.count for name, e in report.replaced.items()} == {"LayerNorm": 1}
    left = {name.rsplit(".", 1)[-1]: e.reason for name, e in report.skipped.items()}
    assert left == {
        "BatchNorm1d": "its statistics are over the batch, not over a row",
        "OddNorm": "it is not a norm class that is known here",
        "RMSNorm": "its forward was set on the instance, by a kernel or another patch",
    }
    assert str(report).count("not replaced") == 3
    assert caught.value.report.skipped.keys() == report.skipped.keys()


def test_keyword_arguments_and_other_tensors() -> None:
    """Calls by keyword work; what the kernels do not take goes to the class's own forward."""
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    norm = LlamaRMSNorm(8)
    x = torch.randn(3, 8)
    expected = norm(x)
    patch(norm)
    assert torch.allclose(norm(hidden_states=x), expected)
    assert copy.deepcopy(norm).to("meta")(x.to("meta")).device.type == "meta"
    with pytest.raises(TypeError):
        norm(nonsense=x)
