"""Makes the page of results: docs/performance-results.md and the plots in docs/img.

    report.py RESULTS_JSON [--docs FOLDER] [--text]

``--text`` prints each cell with all contenders instead, and writes nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import results
from grid import Direction, Threads, group_names
from results import BadResults, Measured, geometric_mean, mean_by

PAGE = "performance-results.md"
IMAGES = {
    "roofline.png": "Bytes per second against bytes, for truenorm, its peers and copies",
    "ratios.png": "Map of the ratios to the best peer",
}
KIND_NAMES = {
    "rms": "RMSNorm",
    "layer": "LayerNorm",
    "add_rms": "add + RMSNorm",
    "gated": "gate before RMSNorm",
    "gated_after": "gate after RMSNorm",
    "int8": "RMSNorm to int8",
}

INTRODUCTION = """\
# Measured speed

`make bench` writes this page; [bench/README.md](../bench/README.md) says who is measured and how. A ratio is the time
of another system over the time of truenorm: above 1, truenorm is faster. Times are medians in microseconds, the call
included.
"""

COLUMNS = """\
- exact, fast: `tn_norm_forward` in both grades, which differ for f32; with a backward, `tn_norm_backward` after it.
- kept: the backward reads the f32 statistics of the forward instead of computing them again.
- best peer: the fastest of all others, allocating or not; its ratio is to exact. over fastest: its ratio to the fastest
  of exact, fast and kept. torch, oneDNN: these over exact. less calls: oneDNN over exact, less the time of a call on
  1 x 16 elements each; empty where less than half would be left.
- op: truenorm.torch. torch/op: the fastest of torch's rows, compiled or not, over op.
- copy: the faster of memcpy and a streaming copy, of as many bytes as the cell reads and writes, over exact; 1 would be
  the speed of memory. behind: in how many cells a peer is faster than exact.
"""

NOTES = """\
- Peers compute in f32; the exact grade is within half an ulp or a little more. The errors are at the end.
- oneDNN is the SYCL build of PyPI, whose calls go through a queue; hence two columns. Its RMSNorm backward has a wrong
  dx (mean(dy w) is subtracted) and is timed all the same. With row strides its results are wrong, and it is left out.
- ggml is the AVX2 build of PyPI. torch.compile and jax.jit compile for the very shape.
- Several threads: each library has its own pool. Contenders take turns, and wait until the threads of others sleep.
"""


def number(value: float | None, digits: int = 3) -> str:
    """A value with so many significant digits and no exponent; nothing for None."""
    if value is None:
        return ""
    text = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e" in text else text


def ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int) -> list[str]:
    """Markdown; the first ``left`` columns are flush left."""
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    return ["| " + " | ".join(cells) + " |" for cells in (head, rule, *rows)]


def group_title(direction: Direction, threads: Threads, processors: int) -> str:
    what = "Forward" if direction == "forward" else "Forward + backward"
    return f"{what}, {'1 thread' if threads == '1' else f'{processors} threads'}"


# ---- the parts of the page ------------------------------------------------------------------------------


def machine_lines(document: dict[str, Any]) -> list[str]:
    m = document["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    return [
        f"{m['cpu']}, {m['processors']} processors, {', '.join(m['caches'])}; {m['kernel']}; {m['compiler']};",
        f"Python {m['python']}, {versions}. {document['started'][:10]}, {len(document['cells'])} cells in "
        f"{document['seconds'] / 60:.0f} minutes, {document['rounds']} rounds, {m['busy']} processors busy before.",
    ]


SUMMARY_HEAD = ("", "cells", "best peer", "over fastest", "torch", "torch/op", "oneDNN", "less calls", "copy", "behind")


def summary_row(name: str, cells: Sequence[Measured]) -> list[str]:
    """Geometric means over some cells, and in how many of them a peer is faster."""
    columns: tuple[Callable[[Measured], float | None], ...] = (
        lambda c: c.best_ratio,
        lambda c: c.fastest_ratio,
        lambda c: c.ratio("torch"),
        lambda c: c.torch_ratio,
        lambda c: c.ratio("oneDNN"),
        lambda c: c.bare_onednn_ratio,
        lambda c: c.copy_fraction,
    )
    means = [ratio(geometric_mean(map(column, cells))) for column in columns]
    return [name, str(len(cells)), *means, str(sum(1 for c in cells if (c.best_ratio or 1) < 1))]


def summary(cells: Sequence[Measured], processors: int) -> list[str]:
    """All, each direction and threads, and each kind in them."""
    rows = [summary_row("**all**", cells)]
    for direction, threads in group_names(c.cell for c in cells):
        group = [c for c in cells if (c.cell.direction, c.cell.threads) == (direction, threads)]
        rows.append(summary_row(f"**{group_title(direction, threads, processors)}**", group))
        for kind, dtype in dict.fromkeys((c.cell.kind, c.cell.dtype) for c in group):
            part = [c for c in group if (c.cell.kind, c.cell.dtype) == (kind, dtype)]
            rows.append(summary_row(f"{KIND_NAMES[kind]} {dtype}", part))
    return table(SUMMARY_HEAD, rows, 1)


def behind(cells: Sequence[Measured]) -> list[str]:
    """The cells where a peer is faster, the worst first."""
    slower = sorted((c for c in cells if (c.best_ratio or 1) < 1), key=lambda c: c.best_ratio or 1)
    if not slower:
        return ["None."]
    rows = []
    for c in slower:
        assert c.ours and c.best_peer
        fastest = c.ours_best or c.ours
        others = [number(c.ours.us), f"{fastest.contender[2:]} {number(fastest.us)}" if fastest != c.ours else ""]
        peer = [c.best_peer.contender, number(c.best_peer.us), ratio(c.best_ratio)]
        rows.append([f"`{c.cell.name}`", *others, *peer])
    return table(("cell", "exact", "our fastest", "peer", "us", "ratio"), rows, 1)


def cell_table(cells: Sequence[Measured], direction: Direction) -> list[str]:
    extra = ("fast",) if direction == "forward" else ("fast", "kept")
    head = ("norm", "dtype", "rows x n", "exact", *extra, "best peer", "us", "ratio", "torch", "oneDNN", "less calls")
    rows = []
    for c in cells:
        peer = c.best_peer
        rows.append(
            [
                KIND_NAMES[c.cell.kind],
                c.cell.dtype,
                c.cell.shape.name.replace("x", " x ", 1).replace("-view", " view"),
                *(number(c.us(f"C {name}")) for name in ("exact", *extra)),
                peer.contender if peer else "",
                number(peer.us if peer else None),
                f"**{ratio(c.best_ratio)}**" if (c.best_ratio or 1) < 1 else ratio(c.best_ratio),
                ratio(c.ratio("torch")),
                ratio(c.ratio("oneDNN")),
                ratio(c.bare_onednn_ratio),
                number(c.us("torch op")),
                ratio(c.torch_ratio),
                ratio(c.copy_fraction),
            ]
        )
    return table((*head, "op", "torch/op", "copy"), rows, 3)


def errors(cells: Sequence[Measured]) -> list[str]:
    """The largest error of y over all cells, for each contender and dtype."""
    worst: dict[str, dict[str, float]] = {}
    for c in cells:
        for row in c.rows.values():
            if "y" in row.error_ulp:
                of_row = worst.setdefault(row.contender, {})
                of_row[c.cell.dtype] = max(of_row.get(c.cell.dtype, 0.0), row.error_ulp["y"])
    dtypes = ("f32", "bf16", "f16")
    return table(("", *dtypes), ([name, *(number(of_row.get(d)) for d in dtypes)] for name, of_row in worst.items()), 1)


def absences(cells: Sequence[Measured]) -> list[str]:
    """Why peers are missing, with the kinds, dtypes and directions."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for c in cells:
        for name, reason in c.absent.items():
            if not name.startswith("C "):
                what = (
                    f"{KIND_NAMES[c.cell.kind]} {c.cell.dtype}{' backward' if c.cell.direction == 'backward' else ''}"
                )
                found.setdefault((name, reason), {})[what + (" view" if c.cell.shape.parts else "")] = None
    lines = []
    for (name, reason), where in found.items():
        shown = list(where)
        lines.append(
            f"- {name}: {reason} ({', '.join(shown[:4])}{f' and {len(shown) - 4} more' if len(shown) > 4 else ''})"
        )
    return lines


def page(document: dict[str, Any], cells: Sequence[Measured]) -> str:
    processors = document["machine"]["processors"]
    lines = [INTRODUCTION, *machine_lines(document), "", *NOTES.splitlines(), "", "## Geometric means", ""]
    lines += [*COLUMNS.splitlines(), "", *summary(cells, processors), ""]
    lines += [f"![{title}](img/{name})" for name, title in IMAGES.items()]
    lines += ["", "## Where a peer is faster", "", *behind(cells), ""]
    for direction, threads in group_names(c.cell for c in cells):
        group = [c for c in cells if (c.cell.direction, c.cell.threads) == (direction, threads)]
        lines += [f"## {group_title(direction, threads, processors)}", "", *cell_table(group, direction), ""]
    lines += ["## Largest errors of y", "", "In ulp of the largest element of the row, over all cells.", ""]
    lines += [*errors(cells), "", "## Left out", "", *absences(cells), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def text(cells: Sequence[Measured]) -> str:
    """Every cell with all contenders, the fastest first."""
    lines = []
    for c in cells:
        lines.append(f"{c.cell.name}  ({c.bytes} bytes)")
        for row in sorted(c.rows.values(), key=lambda r: r.us):
            error = ", ".join(f"{name} {value:.3g}" for name, value in row.error_ulp.items())
            overhead = "" if row.overhead_us is None else f"{row.overhead_us:.2f}"
            of_ours = ratio(c.ratio(row.contender))
            lines.append(
                f"  {row.contender:20}{row.us:11.2f} us {of_ours:>7} x{row.min_us:11.2f} min{overhead:>8} call  "
                f"{'allocates ' if row.allocates else ''}{error and f'errors in ulp: {error} '}{row.note}".rstrip()
            )
        lines += [f"  {name:20}  absent: {reason}" for name, reason in c.absent.items() if not name.startswith("C ")]
    means = mean_by(cells, lambda cell: (cell.direction, cell.threads), lambda c: c.best_ratio)
    for (direction, threads), mean in means.items():
        lines.append(f"best peer / exact, {direction}, threads {threads}: geometric mean {mean:.2f}")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--docs", type=Path, default=Path(__file__).resolve().parent.parent / "docs")
    parser.add_argument("--text", action="store_true")
    options = parser.parse_args(arguments)
    try:
        document, cells = results.load(options.results)
        if options.text:
            print(text(cells))
            return 0
        content = page(document, cells)
    except (BadResults, KeyError) as error:
        print(
            f"report: {error if isinstance(error, BadResults) else f'{options.results}: no {error}'}", file=sys.stderr
        )
        return 1
    import plots  # only here: it needs matplotlib

    images = options.docs / "img"
    images.mkdir(parents=True, exist_ok=True)
    plots.roofline(cells, images / "roofline.png")
    plots.ratios(cells, images / "ratios.png")
    beside = options.docs / (PAGE + ".new")
    beside.write_text(content, encoding="utf-8")
    beside.replace(options.docs / PAGE)
    print(f"report: {options.docs / PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
