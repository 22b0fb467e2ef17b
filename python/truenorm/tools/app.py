"""The commands of `python -m truenorm`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from rich.table import Table

from .checkpoint import open_checkpoint
from .errors import ToolError, first_line
from .layers import NormLayer, Report, inspect
from .output import console, each, table

app = typer.Typer(
    help="Norm layers: look at those of a checkpoint, compare two implementations.",
    add_completion=False,
    no_args_is_help=False,
    pretty_exceptions_enable=False,
)


Kind = Literal["rms", "layer", "l2"]
DtypeName = Literal["f64", "f32", "bf16", "f16"]
IMPLEMENTATION = "truenorm[:exact|fast][:once|before_scale|t5], torch, numpy32, llama, jax, exact, or MODULE:FUNCTION"


@app.command("inspect")
def inspect_command(
    path: Annotated[Path, typer.Argument(metavar="FILE|DIR", help="safetensors, GGUF, or a folder of them")],
    every: Annotated[bool, typer.Option("--each", help="One line for each norm, not for each role.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="PNG", help="Draw the gains of the layers.")] = None,
) -> None:
    """List the norm layers of a checkpoint: kind, eps, and statistics of their gains."""
    report = inspect(open_checkpoint(path, each("files")), each("norms"))
    if plot is not None:
        from .plot import plot_gains

        plot_gains(report, plot)
    if as_json:
        print(json.dumps(finite(report.as_json()), indent=1))
        return
    out = console()
    out.print(f"{report.file}: {report.format}, {report.model or 'model type unknown'}, {len(report.norms)} norms\n")
    out.print(norm_table(report, every))
    for note in report.notes:
        out.print(f"- {note}", highlight=False)


def finite(value: Any) -> Any:
    """NaN and infinities as None: JSON has neither."""
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    return [finite(v) for v in value] if isinstance(value, list | tuple) else value


def norm_table(report: Report, every: bool) -> Table:
    result = table("norm", "kind", "gain", "shape", "dtype", "eps", "min", "mean", "max", "near 0", "> 6 sigma", left=2)
    groups: dict[tuple[Any, ...], list[NormLayer]] = {}
    for n in report.norms:
        key = n.name if every else (n.role, n.kind, n.offset, n.shape, n.dtype, n.eps)
        groups.setdefault((key,), []).append(n)
    for norms in groups.values():
        result.add_row(*row(norms))
    return result


def row(norms: list[NormLayer]) -> list[str]:
    first = norms[0]
    count = len(norms)  # all of one shape, so that means are plain
    near = sum(n.stats.near_zero for n in norms) / count
    mean = sum(n.stats.mean for n in norms) / count
    return [
        f"{first.role} (x{count})" if count > 1 else first.name,
        first.kind + ("?" if "assumed" in first.kind_from else "") + (" +bias" if first.bias else ""),
        {0.0: "w", 1.0: "1+w", None: "?"}[first.offset],
        "x".join(map(str, first.shape)),
        first.dtype,
        "?" if first.eps is None else f"{first.eps:g}",
        f"{min(n.stats.min for n in norms):.4g}",
        f"{mean:.4g}",
        f"{max(n.stats.max for n in norms):.4g}",
        f"{100 * near:.2g} %" if near else "0",
        str(sum(n.stats.outliers for n in norms)),
    ]


@app.command("compare")
def compare_command(
    a: Annotated[str, typer.Argument(help=IMPLEMENTATION)],
    b: Annotated[str, typer.Argument(help="The other one.")],
    x: Annotated[
        list[Path] | None, typer.Option("--x", metavar="NPY", help="Activations; may be repeated. Without: generated.")
    ] = None,
    weight: Annotated[Path | None, typer.Option(metavar="NPY", help="Without --x: generated, too.")] = None,
    bias: Annotated[Path | None, typer.Option(metavar="NPY")] = None,
    kind: Annotated[Kind, typer.Option()] = "rms",
    eps: Annotated[float, typer.Option(min=0.0)] = 1e-6,
    dtype: Annotated[DtypeName | None, typer.Option(help="Cast the activations to it first.")] = None,
    rows: Annotated[int, typer.Option(min=1, help="Of the generated activations.")] = 256,
    n: Annotated[int, typer.Option(min=1, help="Of the generated activations.")] = 4096,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="PNG", help="Draw the histograms.")] = None,
) -> None:
    """Compare two implementations of a norm: distances in ulp, and each one's error from the exact value."""
    from . import compare as c
    from .ulps import DTYPES

    wanted = None if dtype is None else DTYPES[dtype]
    parameters = tuple(None if p is None else np.ascontiguousarray(c.load_array(p)) for p in (weight, bias))
    if not x and weight is None:
        parameters = (c.generated_weight(n, wanted, seed), parameters[1])
    inputs = c.activations(x or [], rows, n, wanted, seed)
    results = c.compare((a, b), c.Norm(kind, eps), inputs, (parameters[0], parameters[1]), each("rows"))
    if plot is not None:
        draw(a, b, results, f"{kind} norm, eps {eps:g}: {a} and {b}", plot)
    if as_json:
        print(json.dumps([result_json(a, b, r) for r in results], indent=1))
        return
    for result in results:
        show(a, b, result)


def draw(a: str, b: str, results: list[Any], title: str, path: Path) -> None:
    from .plot import plot_ulps
    from .ulps import ERROR_LABELS

    def total(which: int) -> list[int]:
        return [sum(r.errors[which].counts[i] for r in results) for i in range(len(ERROR_LABELS))]

    plot_ulps(ERROR_LABELS, [(f"{a} from exact", total(0)), (f"{b} from exact", total(1))], title, path)


def result_json(a: str, b: str, result: Any) -> dict[str, Any]:
    from .ulps import ERROR_LABELS, LABELS

    def one(histogram: Any, labels: Any) -> dict[str, Any]:
        counts = dict(zip(labels, histogram.counts, strict=True))
        return {"max": finite(histogram.largest), "mean": histogram.mean, "counts": counts}

    errors = {n: one(h, ERROR_LABELS) for n, h in zip(("a", "b"), result.errors, strict=True)}
    between = one(result.between, LABELS)
    return {
        "x": result.name, "dtype": result.dtype, "shape": list(result.shape),
        "a": a, "b": b, "between": between, "error_from_exact": errors,
    }  # fmt: skip


def bar(share: float, width: int = 24) -> str:
    return "█" * round(share * width) or ("▏" if share else "")


def percent(share: float) -> str:
    return f"{100 * share:.4g} %" if share else "0"


def show(a: str, b: str, result: Any) -> None:
    from .ulps import ERROR_LABELS, LABELS

    out = console()
    out.print(f"{result.name}: {result.shape[0]} x {result.shape[1]} {result.dtype}\n", highlight=False)
    between = table("ulp between", "elements", "share", "")
    between.columns[-1].justify = "left"
    for i, label in enumerate(LABELS):
        if result.between.counts[i]:
            share = result.between.share(i)
            between.add_row(label, str(result.between.counts[i]), percent(share), bar(share))
    out.print(between)
    out.print(f"largest {result.between.largest:g}, mean {result.between.mean:.4g} ulp\n", highlight=False)
    errors = table("ulp from exact", a, b)
    for i, label in enumerate(ERROR_LABELS):
        if any(h.counts[i] for h in result.errors):
            errors.add_row(label, *(percent(h.share(i)) for h in result.errors))
    errors.add_row("largest", *(f"{h.largest:.4g}" for h in result.errors))
    errors.add_row("mean", *(f"{h.mean:.4g}" for h in result.errors))
    out.print(errors)
    out.print()


def main(arguments: list[str] | None = None) -> int:
    """0, or 2 after one line on standard error."""
    try:
        app(arguments, standalone_mode=False, prog_name="python -m truenorm")
        return 0
    except ToolError as error:
        message = str(error)
    except typer.TyperException as error:
        format_message = getattr(error, "format_message", None)
        message = first_line(Exception(format_message() if format_message else str(error)))
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except (typer.Abort, KeyboardInterrupt):
        message = "interrupted"
    print(f"truenorm: {message}", file=sys.stderr)
    return 2
