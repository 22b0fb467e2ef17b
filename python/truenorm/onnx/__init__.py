"""An ONNX backend over truenorm's kernels: see docs/onnx.md."""

from .backend import TruenormBackend, is_compatible, prepare, run_model, run_node, supports_device

__all__ = ["TruenormBackend", "is_compatible", "prepare", "run_model", "run_node", "supports_device"]
