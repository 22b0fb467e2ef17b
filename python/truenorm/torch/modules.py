"""The norms as modules, with the argument names and state_dict keys of torch.nn and Transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from truenorm.torch import functional as F

__all__ = ["AddRMSNorm", "GroupNorm", "L2Norm", "LayerNorm", "LlamaRMSNorm", "RMSNorm", "RMSNormGated"]


class RMSNorm(nn.RMSNorm):
    """``torch.nn.RMSNorm`` (normalized_shape, eps, elementwise_affine, device, dtype), computed by truenorm.

    ``cast`` and ``weight_offset`` as ``functional.rms_norm``. state_dict: ``weight``.
    """

    def __init__(
        self,
        normalized_shape: Any,
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        cast: F.Cast = "once",
        weight_offset: float = 0.0,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)
        self.cast: F.Cast = cast
        self.weight_offset = weight_offset

    def forward(self, x: Tensor) -> Tensor:
        offset = self.weight_offset
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps, cast=self.cast, weight_offset=offset)


class LayerNorm(nn.LayerNorm):
    """``torch.nn.LayerNorm``, computed by truenorm. state_dict: ``weight``, ``bias``."""

    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


class GroupNorm(nn.GroupNorm):
    """``torch.nn.GroupNorm``, computed by truenorm. state_dict: ``weight``, ``bias``."""

    def forward(self, input: Tensor) -> Tensor:
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


class LlamaRMSNorm(nn.Module):
    """The RMSNorm of Llama and most of its kin in Transformers: the normalised value is rounded to x's dtype, then
    multiplied by the weight in the promoted dtype. state_dict: ``weight``."""

    def __init__(self, hidden_size: int, eps: float = 1e-6, *, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.variance_epsilon = eps

    def forward(self, hidden_states: Tensor) -> Tensor:
        return F.rms_norm(hidden_states, None, self.weight, self.variance_epsilon, cast="before_scale")

    def extra_repr(self) -> str:
        return f"{tuple(self.weight.shape)}, eps={self.variance_epsilon}"


class AddRMSNorm(nn.Module):
    """(RMSNorm of x + residual, x + residual): the residual stream of a pre-norm transformer in one pass.

    Options as ``functional.norm``. state_dict: ``weight``.
    """

    def __init__(
        self, hidden_size: int, eps: float = 1e-6, *, device: Any = None, dtype: Any = None, **options: Any
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.eps = eps
        self.options = options

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        return F.add_rms_norm(x, residual, self.weight, self.eps, **self.options)

    def extra_repr(self) -> str:
        return f"{tuple(self.weight.shape)}, eps={self.eps}"


class RMSNormGated(nn.Module):
    """RMSNorm with a gate. The defaults are Mamba 2's: the gate goes first, then groups of ``group_size``.

    ``norm_before_gate=True`` gives norm(x) act(gate). ``cast`` "before_scale" and ``out_dtype`` as in
    ``functional.norm``. Without a gate it is the norm alone. state_dict: ``weight``.
    """

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        group_size: int | None = None,
        norm_before_gate: bool = False,
        activation: str = "silu",
        *,
        device: Any = None,
        dtype: Any = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.variance_epsilon = eps
        self.group_size = group_size
        self.norm_before_gate = norm_before_gate
        self.activation = activation
        self.options = options

    def forward(self, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
        y: Tensor = F.norm(
            hidden_states,
            self.weight,
            eps=self.variance_epsilon,
            gate=gate,
            gate_order="after" if self.norm_before_gate else "before",
            act=self.activation,
            group=self.group_size,
            **self.options,
        )
        return y

    def extra_repr(self) -> str:
        return f"{tuple(self.weight.shape)}, eps={self.variance_epsilon}, group_size={self.group_size}"


class L2Norm(nn.Module):
    """x / max(||x||, eps) over ``dim``, as ``torch.nn.functional.normalize``; no parameters."""

    def __init__(self, dim: int = -1, eps: float = 1e-12) -> None:
        super().__init__()
        self.dim = dim
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, 2.0, self.dim, self.eps)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, eps={self.eps}"
