"""Pictures: gains by layer, and ulp histograms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .errors import ToolError
from .layers import NormLayer, Report
from .output import write_beside

# A band reaches from quantile i of layers.QUANTILES to its mirror image.
BANDS = ((0, "#d6e3f1", "min to max"), (1, "#9cbbdd", "5 to 95 %"), (2, "#4d83bf", "25 to 75 %"))
COLOURS = ("#1f5fa8", "#c2571a", "#5a8f3c")
PANELS = 12


def figure(width: float, height: float, rows: int, columns: int) -> tuple[Any, list[Any]]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    fig, axes = pyplot.subplots(rows, columns, figsize=(width, height), squeeze=False, layout="constrained")
    return fig, list(axes.flat)


def save(fig: Any, path: Path) -> None:
    from matplotlib import pyplot

    known = fig.canvas.get_supported_filetypes()
    if path.suffix[1:] not in known:
        pyplot.close(fig)
        raise ToolError(f"{path}: pictures are written as .png, .svg or .pdf")
    write_beside(path, lambda temporary: fig.savefig(temporary, dpi=130, format=path.suffix[1:]))
    pyplot.close(fig)


def short(role: str, limit: int = 44) -> str:
    return role if len(role) <= limit else "…" + role[1 - limit :]


def plot_gains(report: Report, path: Path) -> None:
    """One panel for each role with several layers (bands of quantiles over the layers), one for the others."""
    roles: dict[str, list[NormLayer]] = {}
    for norm in report.norms:
        roles.setdefault(norm.role, []).append(norm)
    many = [(r, n) for r, n in roles.items() if len(n) > 1]
    single = [n[0] for n in roles.values() if len(n) == 1]
    left_out = max(0, len(many) - PANELS)
    panels = min(len(many), PANELS) + bool(single)
    columns = min(panels, 3 if panels > 4 else 2)
    rows = math.ceil(panels / columns)
    fig, axes = figure(4.6 * columns + 0.6, 2.9 * rows + 0.9, rows, columns)
    for axis, (role, norms) in zip(axes, many[:PANELS], strict=False):
        bands(axis, role, norms)
    if single:
        boxes(axes[panels - 1], single[:20])
    for axis in axes[panels:]:
        axis.set_visible(False)
    if many:
        # The largest and smallest values lie outside the bands: the legend says what the shades are.
        handles, labels = axes[0].get_legend_handles_labels()
        fig.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    more = f" ({left_out} more roles not drawn)" if left_out else ""
    fig.suptitle(
        f"Gains of {len(report.norms)} norms, {Path(report.file).name} ({report.model or 'model type unknown'}){more}",
        fontsize=11,
    )
    save(fig, path)


def bands(axis: Any, role: str, norms: Sequence[NormLayer]) -> None:
    quantiles = np.array([n.stats.quantiles for n in norms])
    indices = [n.index for n in norms]
    x = np.array(indices if len(set(indices)) == len(indices) else range(len(norms)))
    order = np.argsort(x)
    x, quantiles = x[order], quantiles[order]
    for i, colour, label in BANDS:
        axis.fill_between(x, quantiles[:, i], quantiles[:, -1 - i], color=colour, lw=0, label=label)
    marker = "o" if len(x) < 12 else None
    axis.plot(x, quantiles[:, 3], color="black", lw=1.2, marker=marker, ms=3, label="median")
    title = (
        f"{short(role)}\n{norms[0].kind}, {'x'.join(map(str, norms[0].shape))}{', gain 1+w' if norms[0].offset else ''}"
    )
    finish(axis, title)
    axis.set_xlabel("layer" if x.tolist() == sorted(set(indices)) else "number", fontsize=8)
    axis.xaxis.get_major_locator().set_params(integer=True)


def boxes(axis: Any, norms: Sequence[NormLayer]) -> None:
    """Norms without siblings, one line each."""
    for y, norm in enumerate(norms):
        q = norm.stats.quantiles
        for i, colour, _ in BANDS:
            axis.barh(y, q[-1 - i] - q[i], left=q[i], height=0.6, color=colour, lw=0)
        axis.plot([q[3], q[3]], [y - 0.3, y + 0.3], color="black", lw=1.5)
    axis.set_yticks(range(len(norms)), [short(n.name, 30) for n in norms])
    axis.set_ylim(max(len(norms), 4) - 0.4, -0.6)
    axis.use_sticky_edges = False
    axis.margins(x=0.08)
    finish(axis, "single norms")
    axis.set_xlabel("gain", fontsize=8)


def finish(axis: Any, title: str) -> None:
    axis.set_title(title, fontsize=9, loc="left")
    axis.tick_params(labelsize=8)
    axis.grid(True, lw=0.4, alpha=0.5)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def plot_ulps(labels: Sequence[str], series: Sequence[tuple[str, Sequence[int]]], title: str, path: Path) -> None:
    """Shares of elements by distance: one group of bars for each bucket, on a logarithmic axis."""
    fig, (axis,) = figure(8, 4.2, 1, 1)
    used = 1 + max(i for _, counts in series for i, c in enumerate(counts) if c or i == 1)
    labels, width = labels[:used], 0.8 / len(series)
    for i, (name, counts) in enumerate(series):
        total = max(1, sum(counts))
        shares = [c / total if c else np.nan for c in counts[:used]]
        positions = np.arange(len(labels)) + (i - (len(series) - 1) / 2) * width
        axis.bar(positions, shares, width, color=COLOURS[i % 3], label=name)
    axis.set_yscale("log")
    axis.set_ylim(top=1.5)
    axis.set_xticks(range(len(labels)), labels)
    axis.set_ylabel("share of elements", fontsize=9)
    axis.set_xlabel("error in ulp", fontsize=9)
    finish(axis, title)
    fig.legend(loc="outside lower center", ncols=len(series), frameon=False, fontsize=9)
    save(fig, path)
