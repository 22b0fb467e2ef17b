"""patch() and unpatch(): norm layers of transformers and torch computed by truenorm.

A replacement is a subclass of the class that it replaces, with the same name and another forward. So constructors,
parameters, state_dict keys, attributes and isinstance checks are those of the original, and what transformers'
_init_weights decides by name or by isinstance (zeros for weights that are stored minus 1, ones for the others) stays.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import inspect
import re
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from torch import nn

from . import layer
from .common import serves
from .fingerprint import TESTED_VERSION, is_known
from .replacements import CLASS_FORWARDS, GROUP_FORWARDS, Forward
from .report import PatchError, Report
from .semantics import GROUPS, Semantics, covered_classes, group_of, known_classes, qualified_name

__all__ = ["patch", "replacement_class", "unpatch"]

_TORCH: dict[type[nn.Module], tuple[Semantics, Forward]] = {
    nn.LayerNorm: (
        Semantics("LN", "torch.nn.LayerNorm", "round_x(ln(x32) * w32 + b32)", "x", "one call"),
        layer.layer_norm,
    ),
    nn.RMSNorm: (
        Semantics("RN", "torch.nn.RMSNorm", "round_x(rms(x32) * w32)", "x", "one call"),
        layer.rms_norm,
    ),
    nn.GroupNorm: (
        Semantics("GN", "torch.nn.GroupNorm", "round_x(gn(x32) * w32 + b32)", "x", "one call"),
        layer.group_norm,
    ),
}
_BATCH = "its statistics are over the batch, not over a row"
_LEFT = {
    "BatchNorm1d": _BATCH,
    "BatchNorm2d": _BATCH,
    "BatchNorm3d": _BATCH,
    "SyncBatchNorm": _BATCH,
    "InstanceNorm1d": "instance norm is not served",
    "InstanceNorm2d": "instance norm is not served",
    "InstanceNorm3d": "instance norm is not served",
    "LocalResponseNorm": "its window slides over the channels",
}
_NORM_NAME = re.compile(r"norm(\dd|\dp|gated)?$", re.IGNORECASE)
_NOT_ACTIVATIONS = ("_WeightNorm", "_SpectralNorm")


# ---- the replacement of a class ------------------------------------------------------------------------------------


def _restore(original: type[nn.Module]) -> nn.Module:
    """An empty instance for copy and pickle; where the class is not replaced any more, the original."""
    cls = replacement_class(original) or original
    return cls.__new__(cls)


def _reduce_ex(self: nn.Module, protocol: Any) -> tuple[Any, ...]:
    """Pickle by the original class: the replacement cannot be imported by name."""
    return _restore, (self._truenorm_original,), self.__dict__.copy()


def _forward(original: type[nn.Module], function: Forward) -> Any:
    """A method that calls function(module, tensors...), or the original forward where that does not apply."""
    old = original.forward
    names = tuple(inspect.signature(old).parameters)[1:]

    @functools.wraps(old)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        given = args
        if kwargs:
            given = args + tuple(kwargs[name] for name in names[len(args) :] if name in kwargs)
            if len(given) != len(args) + len(kwargs):
                return old(self, *args, **kwargs)
        if given and serves(given[0]):
            result = function(self, *given)
            if result is not NotImplemented:
                return result
        return old(self, *args, **kwargs)

    return forward


_subclasses: dict[type[nn.Module], type[nn.Module]] = {}


def _subclass(original: type[nn.Module], function: Forward) -> type[nn.Module]:
    """The replacement of a class; the same object each time."""
    if original in _subclasses:
        return _subclasses[original]
    namespace = {
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        "__reduce_ex__": _reduce_ex,
        "_truenorm_original": original,
        "forward": _forward(original, function),
    }
    _subclasses[original] = type(original.__name__, (original,), namespace)
    return _subclasses[original]


def _lookup(cls: type) -> tuple[Semantics | None, Forward | None, str]:
    """The semantics of a norm class, the function that serves it, and why it is not served."""
    if cls in _TORCH:
        return *_TORCH[cls], ""
    semantics = group_of(cls)
    if semantics is None:
        return None, None, ""
    if not semantics.covered:
        return semantics, None, semantics.reason
    if not _same_version() and not is_known(cls, semantics.group):
        return semantics, None, f"its source is not the one that was read in transformers {TESTED_VERSION}"
    function = CLASS_FORWARDS.get(cls.__name__) or GROUP_FORWARDS.get(semantics.group)
    return semantics, function, ""


@functools.cache
def _same_version() -> bool:
    import transformers

    return str(transformers.__version__) == TESTED_VERSION


def replacement_class(cls: type[nn.Module]) -> type[nn.Module] | None:
    """The subclass of a norm class of transformers or torch that computes through truenorm, or None."""
    _, function, _ = _lookup(cls)
    return None if function is None else _subclass(cls, function)


# ---- a built model -------------------------------------------------------------------------------------------------


def _original(module: nn.Module) -> type[nn.Module] | None:
    """The class that a replaced instance had, else None."""
    return type(module).__dict__.get("_truenorm_original")


def _norm_like(module: nn.Module) -> bool:
    name = type(module).__name__
    return _NORM_NAME.search(name) is not None and name not in _NOT_ACTIVATIONS


def _unknown_reason(module: nn.Module) -> str:
    """Why a module that is called a norm is left; empty for those that only contain one."""
    cls = type(module)
    if cls.__module__.startswith("torch.nn") and cls.__name__ in _LEFT:
        return _LEFT[cls.__name__]
    if not _norm_like(module) or any(_norm_like(m) for m in module.modules() if m is not module):
        return ""
    return "it is not a norm class that is known here"


def _plan(model: nn.Module) -> tuple[Report, list[tuple[nn.Module, type[nn.Module]]]]:
    report, swaps = Report("model"), []
    for module in model.modules():
        cls = _original(module) or type(module)
        name = qualified_name(cls)
        semantics, function, reason = _lookup(cls)
        if semantics is None:
            reason = _unknown_reason(module)
        elif "forward" in module.__dict__:
            reason = "its forward was set on the instance, by a kernel or another patch"
        if reason:
            report.add_skipped(name, reason)
        elif semantics is not None:
            report.add_replaced(name, semantics)
            if function is not None and _original(module) is None:
                swaps.append((module, _subclass(cls, function)))
    return report, swaps


# ---- the registry of transformers ----------------------------------------------------------------------------------


def _classes_by_module() -> dict[str, list[str]]:
    table: dict[str, list[str]] = {}
    for name in covered_classes():
        module, _, cls = name.rpartition(".")
        table.setdefault(module, []).append(cls)
    return table


class _Registry:
    """Replacements in transformers' patch mapping, for modelling modules as they are imported.

    The mapping holds classes, so a module must be loaded before its norms can be registered; there are 248 of them, so
    they are not loaded for that. Keys are anchored patterns: an exact key of the user's goes before them.
    """

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.classes = _classes_by_module()
        self.report = Report("registry")

    def add_module(self, module: ModuleType) -> None:
        from transformers.monkey_patching import get_patch_mapping, register_patch_mapping

        taken = get_patch_mapping()
        for name in self.classes[module.__name__]:
            cls = getattr(module, name, None)
            key = f"^{name}$"
            if not isinstance(cls, type) or "_truenorm_original" in cls.__dict__ or key in taken:
                continue
            _, function, reason = _lookup(cls)
            if reason:
                self.report.replaced.pop(qualified_name(cls), None)
                self.report.add_skipped(qualified_name(cls), reason, 0)
            elif function is not None:
                register_patch_mapping({key: _subclass(cls, function)})
                self.keys.append(key)

    def start(self) -> Report:
        for name, group in known_classes().items():
            semantics = GROUPS[group]
            if semantics.covered:
                self.report.add_replaced(name, semantics, 0)
            else:
                self.report.add_skipped(name, semantics.reason, 0)
        for cls in _TORCH:
            reason = "the registry reaches classes of transformers only; patch(model) replaces it"
            self.report.add_skipped(qualified_name(cls), reason, 0)
        sys.meta_path.insert(0, _finder)
        for module_name in self.classes:
            if module_name in sys.modules:
                self.add_module(sys.modules[module_name])
        return self.report

    def stop(self) -> None:
        from transformers.monkey_patching import get_patch_mapping, unregister_patch_mapping

        if _finder in sys.meta_path:
            sys.meta_path.remove(_finder)
        mapping = get_patch_mapping()
        unregister_patch_mapping([key for key in self.keys if key in mapping])


class _Finder(importlib.abc.MetaPathFinder):
    """Registers the norms of a modelling module right after it was imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        registry = _registry
        if registry is None or fullname not in registry.classes:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                if _registry is not None:
                    _registry.add_module(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_finder = _Finder()
_registry: _Registry | None = None


# ---- the two functions ---------------------------------------------------------------------------------------------


def patch(model: nn.Module | None = None, *, strict: bool = False) -> Report:
    """Compute norm layers by truenorm, each with the cast points of its class.

    model: a built model: its instances are replaced in place, torch's LayerNorm, RMSNorm and GroupNorm among them.
    None: every model that transformers builds from now on, by from_pretrained, from_config or under
    transformers.monkey_patching.apply_patches(); classes of transformers only.
    strict: raise PatchError, and change nothing, if a norm layer of the model would be left.

    Returns a Report. Calling it twice is the same as calling it once.
    """
    global _registry
    if model is not None:
        report, swaps = _plan(model)
        if strict and report.skipped:
            raise PatchError(report)
        for module, cls in swaps:
            module.__class__ = cls
        return report
    if _registry is None:
        _registry = _Registry()
        return _registry.start()
    return _registry.report


def unpatch(model: nn.Module | None = None) -> None:
    """Undo patch(): the instances of a model get their own classes back, or None: transformers builds its own again.

    A model that was built with replacements keeps them until unpatch(model).
    """
    global _registry
    if model is not None:
        for module in model.modules():
            original = _original(module)
            if original is not None:
                module.__class__ = original
    elif _registry is not None:
        _registry.stop()
        _registry = None
