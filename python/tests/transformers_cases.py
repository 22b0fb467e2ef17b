"""Every norm class of transformers that truenorm replaces, built alone, with inputs; and the rules of comparison."""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from truenorm.transformers import covered_classes

N = 64
HEADS = 4
EPS = 2.0**-8  # exact in f32, and large enough to matter
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
HALF = (torch.bfloat16, torch.float16)
WEIGHT_MINUS_1 = ("R3", "R3b", "R10", "R12")

Inputs = Callable[[torch.dtype], tuple[Tensor, ...]]


@dataclass
class Case:
    """A module of one class and a maker of inputs. `label` tells variants of a class apart."""

    name: str
    group: str
    module: nn.Module
    inputs: Inputs
    label: str = ""
    options: dict[str, Any] = field(default_factory=dict)


def rows(*shape: int, dtype: torch.dtype, seed: int = 0, axis: int = -1) -> Tensor:
    """Normal values, in rows (along `axis`) of scales from 1e-3 to 1e3, or 1e2 for f16."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=g)
    scales = list(shape)
    scales[axis] = 1
    x = x * 10 ** (torch.rand(scales, generator=g) * (5 if dtype == torch.float16 else 6) - 3)
    return x.to(dtype)


def load(name: str) -> type[nn.Module]:
    """The class of a qualified name."""
    module, _, cls = name.rpartition(".")
    found: type[nn.Module] = getattr(importlib.import_module(module), cls)
    return found


def randomise(module: nn.Module, group: str) -> None:
    """Parameters that show offsets and cast points."""
    g = torch.Generator().manual_seed(7)
    centre = 0.0 if group in WEIGHT_MINUS_1 else 1.0
    with torch.no_grad():
        for p in module.parameters():
            spread = 0.5 if p.dim() == 1 else 0.1
            p.copy_(torch.randn(p.shape, generator=g) * spread + (centre if p.dim() == 1 else 0.0))


_CONFIG = SimpleNamespace(
    hidden_size=N,
    rms_norm_eps=EPS,
    eps=EPS,
    norm_eps=EPS,
    hidden_act="silu",
    num_groups=8,
    decoder_hidden_size=N,
    adanorm_num_embeddings=3,
    head_dim=N,
    num_key_value_heads=2,
    gated_norm_rank=8,
    intermediate_size=32,
    mlp_bias=False,
)

_SIZE_NAMES = ("hidden_size", "dim", "normalized_shape", "size", "c_in", "num_features", "num_channels")


def _construct(cls: type[nn.Module], **options: Any) -> nn.Module:
    """Call the constructor with size N and EPS under the names that it has."""
    parameters = inspect.signature(cls.__init__).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if "config" in parameters:
        options.setdefault("config", _CONFIG)
    elif not set(_SIZE_NAMES) & set(options):
        size = next((name for name in _SIZE_NAMES if name in parameters), None)
        if size is not None:
            options[size] = N
        elif issubclass(cls, nn.LayerNorm):
            options["normalized_shape"] = N
    if "eps" in parameters or (takes_any and issubclass(cls, nn.LayerNorm | nn.GroupNorm)):
        options.setdefault("eps", EPS)
    return cls(**options)


def _flat(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (rows(4, 64, N, dtype=dtype),)


def _gated(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return rows(4, 64, N, dtype=dtype), rows(4, 64, N, dtype=dtype, seed=1).clamp(-20, 20)


def _image(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (rows(4, N, 8, 8, dtype=dtype, axis=1),)


def _sequence_first(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (rows(4, N, 64, dtype=dtype, axis=1),)


def _heads(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (rows(4, 16, HEADS, N, dtype=dtype),)


def _heads_first(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (rows(4, HEADS, 16, N, dtype=dtype),)


def _query_key(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return rows(4, 16, HEADS, N, dtype=dtype), rows(4, 16, 2, N, dtype=dtype, seed=1)


def _sample_condition(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return rows(4, 64, N, dtype=dtype), rows(4, N, dtype=dtype, seed=1).clamp(-2, 2)


def _token_condition(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return rows(4, 64, N, dtype=dtype), rows(4, 64, N, dtype=dtype, seed=1).clamp(-2, 2)


def _embedding_condition(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return rows(4, 64, N, dtype=dtype), torch.tensor([1])


def _image_condition(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return rows(2, N, 8, 8, dtype=dtype, axis=1), rows(2, 8, 4, 4, dtype=dtype, seed=1, axis=1).clamp(-2, 2)


_Variant = tuple[str, dict[str, Any], Inputs]
_BY_GROUP: dict[str, list[_Variant]] = {
    "R12": [("", {"group_size": 16}, _flat), ("one group", {"group_size": None}, _flat)],
    "G1": [("", {"group_size": 16}, _gated), ("no gate", {"group_size": 16}, _flat)],
    "G2": [
        ("norm first", {"n_groups": 4, "norm_before_gate": True}, _gated),
        ("gate first", {"n_groups": 4, "norm_before_gate": False}, _gated),
        ("no gate", {"n_groups": 4}, _flat),
    ],
    "G3": [("", {}, _gated)],
    "G4": [("", {}, _gated)],
    "L2": [("", {}, _flat), ("heads", {"hidden_size": (HEADS, N)}, _heads)],
    "L9": [("", {}, _image)],
    "GN1": [("", {}, _image)],
    "GN2": [("", {"num_groups": 1, "num_channels": N}, _sequence_first)],
    "Q1": [("", {}, _query_key)],
}
_BY_CLASS: dict[str, list[_Variant]] = {
    "xLSTMRMSNorm": [("", {}, _flat), ("bias", {"use_bias": True}, _flat), ("bare", {"use_weight": False}, _flat)],
    "ChameleonLayerNorm": [("", {"hidden_size": (HEADS, N)}, _heads)],
    "xLSTMMultiHeadLayerNorm": [
        ("", {"num_heads": HEADS, "head_dim": N}, _heads),
        ("bias", {"num_heads": HEADS, "head_dim": N, "use_bias": True}, _heads),
    ],
    "StableLmLayerNormPerHead": [
        ("", {"dim": N, "num_heads": HEADS}, _heads_first),
        ("bias", {"dim": N, "num_heads": HEADS, "bias": True}, _heads_first),
    ],
    "SqueezeBertLayerNorm": [("", {}, _sequence_first)],
    "EsmFold2LayerNorm": [("", {}, _flat), ("no bias", {"bias": False}, _flat)],
    "BitGroupNormActivation": [("", {"num_channels": N}, _image)],
    "Emu3VQVAEGroupNorm": [("", {"num_groups": 8, "num_channels": N}, _image)],
    "Emu3VQVAESpatialNorm": [("", {"in_channels": 8, "out_channels": N}, _image_condition)],
    "EsmFold2AdaptiveLayerNorm": [("", {}, _token_condition)],
    "Qwen2_5_OmniAdaLayerNormZero": [("", {}, _sample_condition)],
    "Qwen2_5_OmniAdaLayerNormZero_Final": [("", {}, _sample_condition)],
    "VibeVoiceDiffusionHeadAdaLayerNorm": [("", {}, _token_condition)],
    "WavTokenizerAdaLayerNorm": [("", {}, _embedding_condition)],
}


def _variants(cls: type[nn.Module], group: str) -> list[_Variant]:
    if cls.__name__ in _BY_CLASS:
        return _BY_CLASS[cls.__name__]
    if "data_format" in inspect.signature(cls.__init__).parameters:
        return [
            ("last", {"data_format": "channels_last"}, _flat),
            ("first", {"data_format": "channels_first"}, _image),
        ]
    if "with_scale" in inspect.signature(cls.__init__).parameters:
        return [("", {}, _flat), ("no weight", {"with_scale": False}, _flat)]
    return _BY_GROUP.get(group, [("", {}, _flat)])


def cases_of(name: str, group: str) -> list[Case]:
    """The variants of one class, parameters randomised."""
    cls = load(name)
    cases = []
    for label, options, inputs in _variants(cls, group):
        module = _construct(cls, **dict(options))
        randomise(module, group)
        cases.append(Case(name, group, module, inputs, label, options))
    return cases


def classes_by_group() -> dict[str, list[str]]:
    """Group -> qualified names of the covered classes."""
    table: dict[str, list[str]] = {}
    for name, group in covered_classes().items():
        table.setdefault(group, []).append(name)
    return table


# ---- what the class computes, in f64 -------------------------------------------------------------------------------


class InF64(TorchFunctionMode):
    """Runs a class's own code with f64 wherever it says f32: its formula without its rounding."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is Tensor.float:
            return args[0].double()
        if func is Tensor.to:
            args = tuple(torch.float64 if a is torch.float32 else a for a in args)
            if kwargs.get("dtype") is torch.float32:
                kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


def as_f64(value: Any) -> Any:
    """A copy in f64 of a module, a tensor, or a tuple of tensors."""
    if isinstance(value, nn.Module):
        return copy.deepcopy(value).double()
    if isinstance(value, Tensor):
        return value.detach().double() if value.is_floating_point() else value
    return tuple(as_f64(v) for v in value)


def tensors(value: Any) -> list[Tensor]:
    """The tensors of a result that is one or a tuple of them."""
    return [value] if isinstance(value, Tensor) else [v for v in value if isinstance(v, Tensor)]


# ---- distances -----------------------------------------------------------------------------------------------------


def half_ulps(a: Tensor, b: Tensor) -> Tensor:
    """How many 16-bit numbers apart."""

    def place(t: Tensor) -> Tensor:
        bits = t.contiguous().view(torch.int16).to(torch.int32)
        return torch.where(bits < 0, -(bits & 0x7FFF), bits)

    return (place(a) - place(b)).abs()


def f32_error(a: Tensor, b: Tensor, floor: float) -> Tensor:
    """|a - b| in units of 2^-23 (|b| + floor): f32 ulps, where floor allows for terms that cancel."""
    return (a.double() - b.double()).abs() / ((b.double().abs() + floor) * 2.0**-23).clamp_min(1e-45)
