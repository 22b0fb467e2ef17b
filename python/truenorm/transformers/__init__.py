"""Norm layers of Hugging Face transformers computed by truenorm, with the cast points of each class."""

from .patching import patch, replacement_class, unpatch
from .report import PatchError, Replaced, Report, Skipped
from .semantics import GROUPS, Semantics, covered_classes, known_classes

__all__ = [
    "GROUPS",
    "PatchError",
    "Replaced",
    "Report",
    "Semantics",
    "Skipped",
    "covered_classes",
    "known_classes",
    "patch",
    "replacement_class",
    "unpatch",
]
