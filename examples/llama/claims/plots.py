"""The pictures of claims.md."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import measures as m
import numpy as np
from matplotlib.ticker import MaxNLocator

from grid import KINDS, TIMED
from results import smooth

COLOURS = {"none": "tab:gray", "layer": "tab:blue", "rms": "tab:red", "prms:0.25": "tab:orange",
           "prms:0.0625": "tab:brown"}  # fmt: skip
WINDOW = 20  # steps
LOSS_SHOWN = (1.0, 3.5)  # nats; curves that spike go to thousands
plt.rcParams.update({"font.size": 8, "axes.grid": True, "grid.alpha": 0.3, "legend.frameon": False})


def panels(count, width=3.4, height=2.6, **kwargs):
    figure, axes = plt.subplots(1, count, figsize=(width * count, height), squeeze=False, **kwargs)
    return figure, axes[0]


def save(figure, folder, name):
    """Beside the place, then renamed."""
    figure.tight_layout()
    partial, path = folder / f".{name}.png", folder / f"{name}.png"
    figure.savefig(partial, dpi=90, metadata={"Software": None})
    plt.close(figure)
    partial.rename(path)


def band(axis, x, rows, kind):
    """The mean over seeds, and all of them between the edges."""
    rows = np.asarray(rows)
    axis.plot(x, rows.mean(axis=0), color=COLOURS[kind], label=kind, linewidth=1.2)
    axis.fill_between(x, rows.min(axis=0), rows.max(axis=0), color=COLOURS[kind], alpha=0.2, linewidth=0)


def loss(results, plan, folder):
    figure, axes = panels(len(plan.depths), sharey=True)
    for axis, depth in zip(axes, plan.depths, strict=True):
        for kind in KINDS:
            runs = m.kept(results.select("curves", kind, depth))
            if runs:
                band(axis, np.arange(1, plan.steps + 1), [smooth(r.loss, WINDOW) for r in runs], kind)
        axis.set(title=f"{depth} layers", xlabel="step")
    axes[0].set_ylim(*LOSS_SHOWN)
    axes[0].set_ylabel("training loss, nats per byte")
    axes[0].legend()
    save(figure, folder, "claims-loss")


def gradients(results, plan, folder):
    depth = max(plan.depths)
    figure, axes = panels(3)
    for kind in KINDS:
        runs = m.kept(results.select("curves", kind, depth))
        if not runs:
            continue
        layers = [r.series("layer_gradient")[1] for r in runs]
        for axis, row in zip(axes, (0, -1), strict=False):
            band(axis, np.arange(1, depth + 1), [g[row] for g in layers], kind)
        band(axes[2], np.arange(1, plan.steps + 1), [smooth(r.gradient, WINDOW) for r in runs], kind)
    axes[0].set(title="first step", xlabel="layer", ylabel=f"length of the gradient, {depth} layers")
    axes[1].set(title="last step", xlabel="layer")
    axes[2].set(title="all parameters", xlabel="step")
    for axis in axes:
        axis.set_yscale("log")
    for axis in axes[:2]:
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].legend()
    save(figure, folder, "claims-gradients")


def drift(results, plan, folder):
    """Mean and variance of the inputs of a few layers, one seed."""
    depth = max(plan.depths)
    figure, axes = plt.subplots(2, len(KINDS), figsize=(2.6 * len(KINDS), 4.2), sharex=True, sharey="row")
    shown = sorted({0, depth // 2, depth, 2 * depth - 1})
    for column, kind in enumerate(KINDS):
        run = results.select("curves", kind, depth)[0]
        for row, name in enumerate(("in_mean", "in_variance")):
            steps, values = run.series(name)
            for i in shown:
                part = "attention" if i % 2 == 0 else "feed-forward"
                axes[row, column].plot(steps, values[:, i], label=f"layer {i // 2 + 1}, {part}", linewidth=1)
        axes[1, column].set_yscale("log")
        axes[0, column].set_title(kind)
        axes[1, column].set_xlabel("step")
    axes[0, 0].set_ylabel("mean of the input")
    axes[1, 0].set_ylabel("variance of the input")
    axes[0, 0].legend(fontsize=6)
    save(figure, folder, "claims-drift")


def search(axis, results, group, setting, values, depth, worst):
    for kind in KINDS:
        rows = [[r.final_valid for r in results.select(group, kind, depth, **{setting: v})] for v in values]
        means = [min(worst, float(np.mean(np.nan_to_num(row, nan=worst, posinf=worst)))) for row in rows]
        axis.plot(values, means, "o-", color=COLOURS[kind], label=kind, markersize=3, linewidth=1.2)
    axis.set_xscale("log")
    axis.set_xticks(values, [f"{v:g}" for v in values], fontsize=6)
    axis.minorticks_off()
    axis.axhline(worst, color="black", linewidth=0.6, linestyle=":")
    axis.text(values[0], worst, "diverged or worse", va="bottom", fontsize=6)


def searches(results, plan, learnt, folder):
    figure, axes = panels(1 + len(plan.rate_depths), sharey=True)
    for axis, depth in zip(axes, plan.rate_depths, strict=False):
        search(axis, results, "rates", "rate", plan.rates, depth, 4.0)
        axis.set(title=f"{depth} layers", xlabel="learning rate")
    search(axes[-1], results, "gains", "gain", plan.gains, plan.gain_depth, 4.0)
    axes[-1].set(title=f"{plan.gain_depth} layers", xlabel="scale of the initial weights")
    for axis in axes:
        axis.axhline(learnt, color="black", linewidth=0.6, linestyle="--")
    axes[0].set_ylabel(f"validation loss after {plan.search_steps} steps")
    axes[0].legend()
    save(figure, folder, "claims-search")


def gap(results, plan, folder):
    figure, axes = panels(2, sharey=True)
    for kind in KINDS:
        runs = m.kept(results.select("small", kind))
        if not runs:
            continue
        band(axes[0], np.arange(1, plan.small_steps + 1), [smooth(r.loss, m.SMALL_WINDOW) for r in runs], kind)
        band(axes[1], m.valid_series(runs[0])[0], [m.valid_series(r)[1] for r in runs], kind)
    axes[0].set(title=f"training, on {plan.small_text // 1024} KiB", xlabel="step", ylabel="nats per byte")
    axes[1].set(title="validation", xlabel="step")
    axes[0].legend()
    save(figure, folder, "claims-gap")


def time(results, plan, folder):
    figure, axes = panels(2)
    for i, kind in enumerate(TIMED):
        found = [m.times(results, kind, w) for w in plan.widths]
        x = np.arange(len(plan.widths)) + (i - 2) * 0.16
        axes[0].bar(x, [100 * norm / step for norm, step, _ in found], 0.15, color=COLOURS[kind], label=kind)
        none = [m.times(results, "none", w)[1] for w in plan.widths]
        axes[1].bar(x, [step / n for (_, step, _), n in zip(found, none, strict=True)], 0.15, color=COLOURS[kind])
    for axis in axes:
        axis.set_xticks(range(len(plan.widths)), [f"width {w}" for w in plan.widths])
    axes[0].set(title="norm layers, % of the step", ylim=(0, 1.4 * axes[0].get_ylim()[1]))
    axes[1].set(title="step, times that without norms", ylim=(0.9, None))
    axes[0].legend(ncols=3, fontsize=7)
    save(figure, folder, "claims-time")


def draw_all(results, plan, learnt, folder):
    folder.mkdir(parents=True, exist_ok=True)
    loss(results, plan, folder)
    gradients(results, plan, folder)
    drift(results, plan, folder)
    searches(results, plan, learnt, folder)
    gap(results, plan, folder)
    time(results, plan, folder)
