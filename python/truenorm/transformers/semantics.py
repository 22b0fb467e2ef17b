"""What each group of norm classes in transformers computes, and how truenorm serves it.

The arithmetic was read from the sources of transformers 5.24.0. Notation: x32 is x in f32, round_d(v) rounds v to
dtype d, rms(v) = v / sqrt(mean(v^2) + eps), ln(v) = (v - mean(v)) / sqrt(var(v) + eps), p = promote(x, weight)
with torch's promotion rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from .zoo import CLASSES

__all__ = ["CLASS_HOW", "GROUPS", "Semantics", "covered_classes", "group_of", "known_classes", "qualified_name"]


@dataclass(frozen=True)
class Semantics:
    """One group of classes that share their arithmetic.

    formula: what the class computes, with its cast points; out: the dtype of the result; how: how truenorm serves
    it ("one call": one kernel; "composed": kernel calls and torch operations between named rounding points;
    "f32 and f64": a kernel for those dtypes, while 16-bit inputs keep the class's own chain of roundings; "inner norm":
    the class is left as it is and the norm inside it is replaced); reason: why a group is not served, else empty.
    """

    group: str
    title: str
    formula: str
    out: str
    how: str
    reason: str = ""

    @property
    def covered(self) -> bool:
        """Whether truenorm replaces the classes of this group."""
        return not self.reason


_TABLE = (
    Semantics("R1", "RMS, rounded, then scaled", "w * round_x(rms(x32))", "p", "one call"),
    Semantics("R2", "RMS, scaled in f32", "round_x(w32 * rms(x32))", "x", "one call"),
    Semantics("R3", "RMS, weight stored minus 1", "round_x((1 + w32) * rms(x32))", "x", "one call"),
    Semantics("R3b", "RMS, 1 + weight rounded", "round_x(round_w(1 + w) * rms(x32))", "x", "one call"),
    Semantics(
        "R4",
        "T5",
        "w * round_w(rms(x32)) if w is 16-bit, else w * rms(x32)",
        "w if 16-bit, else f32",
        "one call",
    ),
    Semantics("R5", "RMS without weight", "round_x(rms(x32))", "x", "one call"),
    Semantics("R6", "RMS, 1/rms rounded", "x * round_x(1 / sqrt(mean(x32^2) + eps))", "x", "one call"),
    Semantics("R7", "1/rms itself", "round_x(1 / sqrt(mean(x32^2) + eps)), one value a row", "x", "composed"),
    Semantics("R8", "L2", "round_x(x32 / sqrt(sum(x32^2) + eps))", "x", "one call"),
    Semantics(
        "R9",
        "RMS in the input's dtype",
        "x / sqrt(mean(x^2) + eps) * w, each step rounded",
        "p",
        "f32 and f64",
    ),
    Semantics("R10", "RMS of scaled input", "round_x(rms(round_x(x32 * round_w(1 + w))))", "x", "composed"),
    Semantics(
        "R11",
        "RMS by unbiased variance",
        "x * (w / sqrt(var_unbiased(x) + eps)), each step rounded",
        "p",
        "f32 and f64",
    ),
    Semantics("R12", "RMS of groups, weight stored minus 1", "round_x((1 + w32) * rms_group(x32))", "x", "one call"),
    Semantics("G1", "gate, then RMS of groups", "w * round_x(rms_group(x32 * silu(g32)))", "p", "one call"),
    Semantics(
        "G2",
        "gate before or after, RMS of groups",
        "round_x(w * rms_group(x32) * silu(g32)) or round_x(w * rms_group(x32 * silu(g32)))",
        "x",
        "one call",
    ),
    Semantics(
        "G3",
        "RMS, then gate, three roundings",
        "round_x((w * round_x(rms(x32))) * silu(g32))",
        "x",
        "one call",
    ),
    Semantics("G4", "RMS, then gate, one rounding", "round_x(w32 * rms(x32) * act(g32))", "x", "one call"),
    Semantics("G5", "RMS gated by its own output", "y = R1(x); round_y(y * sigmoid(mlp(y)))", "p", "inner norm"),
    Semantics("L1", "LayerNorm, channels last or first", "round_x(ln(x32) * w32 + b32)", "x", "one call"),
    Semantics("L2", "LayerNorm without bias, [heads, n] weight", "round_x(w32 * ln(x32))", "x", "one call"),
    Semantics("L3", "LayerNorm without parameters", "round_x(ln(x32)), eps = 1e-5", "x", "one call"),
    Semantics(
        "L4",
        "LayerNorm, weight stored minus 1",
        "round_x(ln(x32) * round_w(1 + w) + b); Moonshine: round_x(ln(x32)) * round_w(offset + w)",
        "x (Moonshine: p)",
        "one call",
    ),
    Semantics("L5", "LayerNorm, rounded, then affine", "round_p(w * round_x(ln(x32))) + b", "p", "one call"),
    Semantics(
        "L6",
        "LayerNorm through f32",
        "round_x(ln(x32) * w + b); EsmFold: bf16 x rounds w, b",
        "x",
        "one call",
    ),
    Semantics(
        "L7",
        "LayerNorm in the input's dtype",
        "(x - mean) / sqrt(var + eps) * w + b, each step rounded",
        "p",
        "f32 and f64",
    ),
    Semantics(
        "L8",
        "LayerNorm per head",
        "xLSTM: round_x(ln(x32)) * w + b over heads; StableLM: one nn.LayerNorm a head",
        "p; StableLM: x",
        "one call",
    ),
    Semantics(
        "L9",
        "LayerNorm over dim 1",
        "as L1; VitDet: (x - u) / sqrt(s + eps), each step rounded",
        "x; VitDet: p",
        "one call",
    ),
    Semantics(
        "A1",
        "adaptive",
        "norm(x) * (1 + scale) + shift, or gate * norm(x) + shift, or norm(x) * scale + shift",
        "x",
        "composed",
    ),
    Semantics("GN1", "GroupNorm (and an activation)", "round_x(gn(x32) * w32 + b32)", "x", "one call"),
    Semantics(
        "GN2",
        "GroupNorm with a padding mask",
        "as GN1 without a mask; masked mean and variance with one",
        "x",
        "one call",
    ),
    Semantics(
        "Q1",
        "query and key to length sqrt(d)",
        "x * (sqrt(d) / max(|x|, eps)), each step rounded",
        "x",
        "f32 and f64",
    ),
    Semantics(
        "GN3",
        "cumulative GroupNorm",
        "mean and variance over all steps so far",
        "x",
        "",
        "its statistics run along time, across rows",
    ),
    Semantics(
        "BN1",
        "BatchNorm",
        "statistics over the batch",
        "x",
        "",
        "its statistics are over the batch, not over a row",
    ),
    Semantics(
        "BN2",
        "frozen BatchNorm",
        "x * (w / sqrt(var + 1e-5)) + (b - mean * scale)",
        "p",
        "",
        "a fixed factor and offset per channel: nothing is normalised, and it folds into the convolution before it",
    ),
    Semantics(
        "N0",
        "fixed affine",
        "x * w + b",
        "p",
        "",
        "a fixed factor and offset per element: nothing is normalised",
    ),
    Semantics("X1", "no norm", "an MLP", "x", "", "it computes the factor of a modulation; no norm is in it"),
)

#: group -> semantics, in the order of the documentation
GROUPS: dict[str, Semantics] = {s.group: s for s in _TABLE}

#: classes that are served otherwise than their group
CLASS_HOW = {"VitDetLayerNorm": "f32 and f64"}


def qualified_name(cls: type) -> str:
    """``package.module.Class`` of a class object."""
    return f"{cls.__module__}.{cls.__qualname__}"


def _expand(entry: str) -> str:
    place, name = entry.split(":")
    model, _, file = place.partition("/")
    return f"transformers.models.{model}.modeling_{file or model}.{name}"


@cache
def known_classes() -> dict[str, str]:
    """Qualified name -> group, for every norm class of transformers 5.24.0."""
    return {_expand(entry): group for group, entries in CLASSES.items() for entry in entries.split()}


@cache
def covered_classes() -> dict[str, str]:
    """Qualified name -> group, for the classes that truenorm replaces."""
    return {name: group for name, group in known_classes().items() if GROUPS[group].covered}


def group_of(cls: type) -> Semantics | None:
    """The semantics of a class of transformers, by its qualified name; None for a class that is not a known norm."""
    group = known_classes().get(qualified_name(cls))
    return None if group is None else GROUPS[group]
