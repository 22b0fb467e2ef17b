"""The two pictures of the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log2
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from grid import DIRECTIONS, SHAPES, Kind
from results import Measured

matplotlib.use("Agg")

Line = tuple[str, str, str, Callable[[Measured], float | None]]
LINES: tuple[Line, ...] = (
    ("memcpy", "0.6", ":", lambda c: c.us("memcpy")),
    ("streaming copy", "0.6", "--", lambda c: c.us("streaming copy")),
    ("best peer", "tab:orange", "-", lambda c: c.best_peer.us if c.best_peer else None),
    ("torch", "tab:red", "-", lambda c: c.us("torch")),
    ("truenorm exact", "tab:blue", "-", lambda c: c.us("C exact")),
    ("truenorm fast", "tab:cyan", "-", lambda c: c.us("C fast")),
)
PANELS: tuple[tuple[Kind, str], ...] = (("rms", "f32"), ("layer", "f32"), ("rms", "bf16"), ("layer", "bf16"))


def _panel(axes: Axes, cells: Sequence[Measured], kind: Kind, dtype: str) -> None:
    """GB/s against bytes, forward, one thread, contiguous rows."""
    chosen = [
        c
        for c in cells
        if (c.cell.kind, c.cell.dtype, c.cell.direction, c.cell.threads) == (kind, dtype, "forward", "1")
        and not c.cell.shape.parts
    ]
    chosen.sort(key=lambda c: c.bytes)
    for label, colour, style, time in LINES:
        points = [(c.bytes, c.bytes / us * 1e-3) for c in chosen if (us := time(c))]
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, linestyle=style, marker="o", markersize=3, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks([1 << power for power in range(14, 28, 2)], ["16K", "64K", "256K", "1M", "4M", "16M", "64M"])
    axes.set_yticks([1, 2, 5, 10, 20, 50, 100, 200, 500], ["1", "2", "5", "10", "20", "50", "100", "200", "500"])
    axes.minorticks_off()
    axes.set_title(f"{'RMSNorm' if kind == 'rms' else 'LayerNorm'} {dtype}", fontsize=9)
    axes.grid(alpha=0.3)


def roofline(cells: Sequence[Measured], path: Path) -> None:
    figure, axes = plt.subplots(2, 2, figsize=(9, 7), sharey=True)
    for panel, (kind, dtype) in zip(axes.flat, PANELS, strict=True):
        _panel(panel, cells, kind, dtype)
    axes[0, 0].legend(fontsize=7)
    figure.supylabel("GB/s", fontsize=9)
    figure.supxlabel("bytes read and written", fontsize=9)
    figure.suptitle("Forward, one thread", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    plt.close(figure)


def ratios(cells: Sequence[Measured], path: Path) -> None:
    """A map of the ratio to the best peer: rows are norm, dtype, direction and threads, columns are shapes."""
    shapes = [shape.name for shape in SHAPES]
    order = {direction: i for i, direction in enumerate(DIRECTIONS)}
    keys = list(dict.fromkeys((c.cell.threads, order[c.cell.direction], c.cell.kind, c.cell.dtype) for c in cells))
    values = np.full((len(keys), len(shapes)), np.nan)
    for c in cells:
        if c.best_ratio:
            row = keys.index((c.cell.threads, order[c.cell.direction], c.cell.kind, c.cell.dtype))
            values[row, shapes.index(c.cell.shape.name)] = c.best_ratio
    figure, axes = plt.subplots(figsize=(8.5, 1.5 + 0.19 * len(keys)))
    image = axes.imshow(np.log2(values), cmap="RdBu", vmin=-2, vmax=2, aspect="auto")
    for row, column in np.argwhere(~np.isnan(values)):
        value = values[row, column]
        colour = "white" if abs(log2(value)) > 1.4 else "black"
        axes.text(
            column,
            row,
            f"{value:.2g}" if value < 100 else f"{value:.0f}",
            ha="center",
            va="center",
            fontsize=6,
            color=colour,
        )
    labels = [
        f"{kind} {dtype} {DIRECTIONS[d]}{'' if threads == '1' else ', all threads'}" for threads, d, kind, dtype in keys
    ]
    axes.set_yticks(range(len(keys)), labels, fontsize=6)
    axes.set_xticks(range(len(shapes)), shapes, fontsize=6, rotation=30, ha="right")
    bar = figure.colorbar(image, ax=axes, fraction=0.03, pad=0.02)
    bar.set_ticks([-2, -1, 0, 1, 2], labels=["1/4", "1/2", "1", "2", "4"])
    axes.set_title("time of the best peer / time of truenorm (exact); blue: truenorm is faster", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)
