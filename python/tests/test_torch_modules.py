"""Modules: torch.nn's and Transformers' arguments, attributes and state_dicts, both ways; the article's program."""

from __future__ import annotations

import copy
import pickle
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_cases import draw, error_ulp, reference, same_bits

import truenorm.torch as tn

PAIRS: list[tuple[type[nn.Module], type[nn.Module], tuple[Any, ...], dict[str, Any], tuple[int, ...]]] = [
    (tn.RMSNorm, nn.RMSNorm, (8,), {}, (3, 8)),
    (tn.RMSNorm, nn.RMSNorm, ((4, 8),), {"eps": 1e-3}, (3, 4, 8)),
    (tn.RMSNorm, nn.RMSNorm, ([8],), {"elementwise_affine": False}, (3, 8)),
    (tn.RMSNorm, nn.RMSNorm, (8,), {"dtype": torch.float64}, (3, 8)),
    (tn.LayerNorm, nn.LayerNorm, (8,), {}, (3, 8)),
    (tn.LayerNorm, nn.LayerNorm, ((4, 8), 1e-3), {}, (3, 4, 8)),
    (tn.LayerNorm, nn.LayerNorm, (8,), {"bias": False}, (3, 8)),
    (tn.LayerNorm, nn.LayerNorm, (8,), {"elementwise_affine": False, "device": "cpu"}, (3, 8)),
    (tn.GroupNorm, nn.GroupNorm, (2, 6), {}, (3, 6, 5)),
    (tn.GroupNorm, nn.GroupNorm, (3, 6), {"eps": 1e-3, "affine": False}, (3, 6)),
    (tn.GroupNorm, nn.GroupNorm, (6, 6), {"dtype": torch.bfloat16}, (3, 6, 4, 2)),
]


def randomise(module: nn.Module) -> None:
    with torch.no_grad():
        for k, p in enumerate(module.parameters()):
            p.copy_(draw(*p.shape, seed=k))


@pytest.mark.parametrize(("ours", "theirs", "args", "kwargs", "shape"), PAIRS)
def test_torch_nn(ours: Any, theirs: Any, args: Any, kwargs: Any, shape: tuple[int, ...]) -> None:
    a, b = ours(*args, **kwargs), theirs(*args, **kwargs)
    assert repr(a) == repr(b) and isinstance(a, theirs)
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    randomise(b)
    assert list(a.state_dict()) == list(b.state_dict())
    a.load_state_dict(b.state_dict())
    x = draw(*shape, dtype=kwargs.get("dtype", torch.float32), seed=9)
    y, z = a(x), b(x)
    assert y.dtype == z.dtype
    assert torch.allclose(y, z, atol=1e-6 if y.dtype != torch.bfloat16 else 0.05, rtol=1e-5)
    randomise(a)
    b.load_state_dict(a.state_dict())
    for clone in (copy.deepcopy(a), pickle.loads(pickle.dumps(a))):
        assert same_bits(clone(x), a(x))


def test_llama() -> None:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        ours, theirs = tn.LlamaRMSNorm(64, eps=1e-5).to(dtype), llama.LlamaRMSNorm(64, eps=1e-5).to(dtype)
        assert repr(ours) == repr(theirs) and ours.variance_epsilon == theirs.variance_epsilon
        randomise(theirs)
        ours.load_state_dict(theirs.state_dict())
        theirs.load_state_dict(ours.state_dict())
        x = draw(9, 64, dtype=dtype)
        y, z = ours(x), theirs(x)
        assert y.dtype == z.dtype
        tolerance = 1e-6 if dtype == torch.float32 else 2.0**-7 if dtype == torch.bfloat16 else 2.0**-10
        assert torch.allclose(y, z, rtol=tolerance, atol=1e-6)


def test_gated_like_mamba() -> None:
    mamba = pytest.importorskip("transformers.models.mamba2.modeling_mamba2")
    theirs = mamba.MambaRMSNormGated(32, 8)
    randomise(theirs)
    ours = tn.RMSNormGated(32, group_size=8, cast="before_scale")
    ours.load_state_dict(theirs.state_dict())
    x, g = draw(2, 5, 32), draw(2, 5, 32, seed=1)
    assert torch.allclose(ours(x, g), theirs(x, g), atol=1e-5)
    assert torch.allclose(ours(x), theirs(x), atol=1e-5)


def test_gated_after() -> None:
    ours, x, g = tn.RMSNormGated(16, norm_before_gate=True, activation="sigmoid"), draw(4, 16), draw(4, 16, seed=1)
    assert error_ulp(ours(x, g), reference(x, gate=g, gate_order="after", act="sigmoid")) <= 0.501
    assert "group_size" in repr(ours)


def test_add() -> None:
    module, x, r = tn.AddRMSNorm(16, eps=1e-5, sum="exact"), draw(4, 16), draw(4, 16, seed=1)
    y, total = module(x, r)
    assert same_bits(total, x + r)
    assert error_ulp(y, reference(x, residual=r, eps=1e-5)) <= 0.5001
    assert list(module.state_dict()) == ["weight"] and "eps=1e-05" in repr(module)


def test_l2() -> None:
    x = draw(4, 5, 6)
    for dim in (-1, 0, 1):
        assert torch.allclose(tn.L2Norm(dim)(x), torch.nn.functional.normalize(x, dim=dim), atol=1e-6)
    assert not tn.L2Norm().state_dict() and repr(tn.L2Norm()) == "L2Norm(dim=-1, eps=1e-12)"


def test_options_of_rms_norm() -> None:
    gemma, x = tn.RMSNorm(16, 1e-6, weight_offset=1.0), draw(4, 16)
    nn.init.zeros_(gemma.weight)
    assert same_bits(gemma(x), tn.rms_norm(x, None, None, 1e-6))


def test_training_step() -> None:
    """A step of a small model with ours is that with torch's, to rounding."""
    losses = []
    for package in (nn, tn):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), package.LayerNorm(16), nn.Linear(16, 8), package.RMSNorm(8))
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        for _ in range(5):
            optimizer.zero_grad()
            loss: Tensor = (model(draw(4, 8)) - draw(4, 8, seed=1)).pow(2).mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert abs(losses[0] - losses[1]) < 1e-5


EXAMPLE = Path(__file__).parents[2] / "examples" / "simplenet.py"


def test_article() -> None:
    names = runpy.run_path(str(EXAMPLE))
    torch.manual_seed(0)
    net, x = names["SimpleNet"](), torch.randn(2, 10)
    y = net(x)
    assert tuple(y.shape) == (2, 5)
    assert list(net.state_dict()) == ["linear.weight", "linear.bias", "rms_norm.weight"]
    assert error_ulp(y, reference(net.linear(x))) <= 0.5001
    y.sum().backward()
    assert all(p.grad is not None for p in net.parameters())


def test_article_prints(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    out = capsys.readouterr().out
    assert "Input shape: torch.Size([2, 10])" in out and "Output shape: torch.Size([2, 5])" in out
