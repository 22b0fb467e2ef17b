"""The norm layers of a checkpoint: what they are, and statistics of their gains."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from . import conventions
from .checkpoint import Checkpoint, Tensor
from .errors import ToolError

Array = npt.NDArray[Any]
NEAR_ZERO = 1e-2
SIGMAS = 6.0
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


@dataclass(frozen=True)
class Stats:
    """Of the gains (offset included), not-finite ones left out."""

    min: float
    max: float
    mean: float
    std: float
    near_zero: float  # share of |gain| < 0.01
    outliers: int  # further than 6 sigma from the mean
    not_finite: int
    quantiles: tuple[float, ...]


@dataclass(frozen=True)
class NormLayer:
    name: str
    kind: str
    kind_from: str
    offset: float | None
    shape: tuple[int, ...]
    dtype: str
    bias: bool
    eps: float | None
    eps_from: str
    stats: Stats

    @property
    def role(self) -> str:
        """The name with its numbers replaced: layers of one role share it."""
        return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", self.name)

    @property
    def index(self) -> int:
        """The first number in the name: the layer, in nearly every model."""
        found = re.search(r"\.(\d+)(\.|$)", self.name)
        return int(found.group(1)) if found else 0


@dataclass
class Report:
    file: str
    format: str
    model: str
    norms: list[NormLayer] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def statistics(gains: Array) -> Stats:
    finite = gains[np.isfinite(gains)]
    if finite.size == 0:
        nothing = float("nan")
        return Stats(nothing, nothing, nothing, nothing, 0.0, 0, gains.size, (nothing,) * len(QUANTILES))
    mean, std = float(finite.mean()), float(finite.std())
    return Stats(
        float(finite.min()),
        float(finite.max()),
        mean,
        std,
        float((np.abs(finite) < NEAR_ZERO).mean()),
        int((np.abs(finite - mean) > SIGMAS * std).sum()) if std > 0 else 0,
        int(gains.size - finite.size),
        tuple(float(q) for q in np.quantile(finite, QUANTILES)),
    )


def norm_tensors(checkpoint: Checkpoint) -> Iterator[tuple[str, str, Tensor]]:
    """(module, name of the parameter, tensor) of every weight of a norm."""
    for tensor in checkpoint.tensors:
        module, _, parameter = tensor.name.rpartition(".")
        if parameter in conventions.WEIGHTS and len(tensor.shape) in (1, 2) and conventions.is_norm_module(module):
            yield module, parameter, tensor


def natural(name: str) -> list[Any]:
    return [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in re.split(r"(\d+)", name)]


def inspect(checkpoint: Checkpoint, each: Callable[[Iterable[Any]], Iterable[Any]]) -> Report:
    """Reads the norms' tensors only. `each` iterates over them (a progress bar may)."""
    names = {t.name for t in checkpoint.tensors}
    keys = checkpoint.keys
    model = str(checkpoint.config.get("model_type") or keys.get("general.architecture") or "")
    report = Report(str(checkpoint.path), checkpoint.format, model)
    found = sorted(norm_tensors(checkpoint), key=lambda item: natural(item[0]))
    if not found:
        raise ToolError(f"{checkpoint.path}: no norm layers among {len(names)} tensors")
    for module, parameter, tensor in each(found):
        config = conventions.part_of(checkpoint.config, module)
        biased = any(f"{module}.{b}" in names for b in conventions.BIASES)
        running = f"{module}.running_mean" in names
        kind, kind_from = conventions.kind_of(module, biased, running, config, keys)
        offset = conventions.offset_of(module, kind, biased, config, keys, parameter)
        eps, eps_from = conventions.eps_of(module, kind, config, keys)
        stats = statistics(tensor.load() + (offset or 0.0))
        report.norms.append(
            NormLayer(module, kind, kind_from, offset, tensor.shape, tensor.dtype, biased, eps, eps_from, stats)
        )
    report.notes = notes(report, checkpoint)
    return report


def notes(report: Report, checkpoint: Checkpoint) -> list[str]:
    """What a reader of the table should know."""
    lines = []
    if any(n.offset == 1 for n in report.norms):
        lines.append("gain 1+w: the file stores the gain less one; the statistics are those of the gain")
    if checkpoint.format == "GGUF" and report.model in conventions.GGUF_ONE_ADDED:
        lines.append(f"{report.model}: the model's own files store the gain less one; this one has it added")
    if checkpoint.format == "safetensors" and not checkpoint.config:
        lines.append("no config.json beside the file: eps and the gain's convention are unknown")
    elif any(n.offset is None for n in report.norms):
        lines.append(f"model type {report.model or '(none)'}: whether the gain is stored less one is unknown")
    if any("class default" in n.eps_from for n in report.norms):
        lines.append("eps 1e-06 of q_a and kv_a norms is the class's own; config.json does not reach it")
    if any("assumed" in n.kind_from for n in report.norms):
        lines.append("kind rms?: nothing says so but the missing bias")
    broken = sum(n.stats.not_finite for n in report.norms)
    if broken:
        lines.append(f"{broken} gains are NaN or infinite")
    return lines
