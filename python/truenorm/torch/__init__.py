"""truenorm for PyTorch: functions and modules over operators of the dispatcher (``torch.ops.truenorm``).

    from truenorm.torch import RMSNorm, LayerNorm, LlamaRMSNorm     # in place of torch.nn's or your own
    from truenorm.torch import rms_norm, layer_norm, norm           # functions

They have gradients (RMSNorm and LayerNorm second ones too), batching rules for ``torch.vmap``, and trace through
``torch.compile`` without a graph break. See docs/torch.md.
"""

from truenorm.torch.functional import (
    add_rms_norm,
    gated_rms_norm,
    group_norm,
    l2_norm,
    layer_norm,
    norm,
    norm_quantized,
    norm_with_stats,
    normalize,
    rms_norm,
)
from truenorm.torch.modules import AddRMSNorm, GroupNorm, L2Norm, LayerNorm, LlamaRMSNorm, RMSNorm, RMSNormGated

__all__ = [
    "AddRMSNorm",
    "GroupNorm",
    "L2Norm",
    "LayerNorm",
    "LlamaRMSNorm",
    "RMSNorm",
    "RMSNormGated",
    "add_rms_norm",
    "gated_rms_norm",
    "group_norm",
    "l2_norm",
    "layer_norm",
    "norm",
    "norm_quantized",
    "norm_with_stats",
    "normalize",
    "rms_norm",
]
