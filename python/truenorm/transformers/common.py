"""What the forwards of rms.py, layer.py and adaptive.py share."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from truenorm import torch as tn

__all__ = [
    "bias_of",
    "eps_of",
    "is_half",
    "plain",
    "promote",
    "round_eps",
    "rounded_affine",
    "serves",
    "weight_of",
]

Kind = Literal["rms", "layer", "l2"]
_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_HALF = (torch.bfloat16, torch.float16)


def serves(x: Any) -> bool:
    """Whether x is a tensor that the kernels take: on the CPU, f64, f32, bf16 or f16."""
    return isinstance(x, Tensor) and x.is_cpu and x.dtype in _DTYPES


def _f32(value: float) -> float:
    """value rounded to f32 (Veltkamp's splitting), as torch rounds a Python number that it adds to an f32 tensor."""
    c = value * 536870913.0
    return c - (c - value)


def round_eps(eps: float, x: Tensor) -> float:
    """eps as the class adds it: rounded to f32 unless it computes in f64."""
    return eps if x.dtype == torch.float64 else _f32(eps)


def eps_of(m: Any, x: Tensor) -> float:
    """The module's eps, whatever it calls it."""
    attributes = vars(m)
    eps = attributes["variance_epsilon"] if "variance_epsilon" in attributes else attributes["eps"]
    return round_eps(float(eps), x)


def weight_of(m: Any) -> Tensor | None:
    """The weight, or None where the module has none."""
    weight: Tensor | None = getattr(m, "weight", None)
    return weight


def bias_of(m: Any) -> Tensor | None:
    """The bias, or None where the module has none."""
    bias: Tensor | None = getattr(m, "bias", None)
    return bias


def promote(x: Tensor, *others: Tensor | None) -> torch.dtype:
    """torch's promoted dtype of several tensors."""
    dtype = x.dtype
    for other in others:
        if other is not None:
            dtype = torch.promote_types(dtype, other.dtype)
    return dtype


def is_half(x: Tensor) -> bool:
    """Whether x is bf16 or f16."""
    return x.dtype in _HALF


def plain(m: Any, kind: type[nn.Module]) -> bool:
    """Whether an inner module may be bypassed: it is what the class made, and nothing hooks into it."""
    hooked = m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks
    return isinstance(m, kind) and not hooked and "forward" not in m.__dict__


def rounded_affine(x: Tensor, w: Tensor | None, b: Tensor | None, kind: Kind, eps: float) -> Tensor:
    """round(w * round_x(h)) + b, each in torch's promoted dtype."""
    y: Tensor
    if b is None or w is None or promote(x, w, b) == promote(x, w):
        y = tn.norm(x, w, b, kind=kind, eps=eps, cast="before_scale", round_product=True)
    else:
        y = tn.norm(x, w, kind=kind, eps=eps, cast="before_scale") + b
    return y
