"""claims.md: the verdicts, and the tables and pictures that they come from."""

import platform
import textwrap
from pathlib import Path

import measures as m
import numpy as np
import verdicts as v

import grid
import plots
from grid import KINDS, TIMED


def prose(text):
    return textwrap.fill(" ".join(text.split()), 118, break_long_words=False, break_on_hyphens=False)


def bullets(*texts):
    lines = [textwrap.fill(" ".join(t.split()), 118, initial_indent="- ", subsequent_indent="  ") for t in texts]
    return "\n".join(lines)


def table(head, rows, align=""):
    """A Markdown table; `align` has an r for each column to be aligned right."""
    rule = ["---:" if c == "r" else "---" for c in align.ljust(len(head))[: len(head)]]
    lines = [head, rule, *([str(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def spread(values, digits=3):
    """Mean and deviation over seeds."""
    if not np.isfinite(values).all():
        return "diverged"
    mean, sd = m.mean_and_sd(values)
    return f"{mean:.{digits}f} +- {sd:.{digits}f}"


def listed(values):
    return ", ".join(f"{value:g}" for value in values)


def cpu():
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


# ---- sections: lists of paragraphs ------------------------------------------------------------------


def head(results, plan, entropies, learnt):
    minutes = sum(r.seconds for r in results.all) / 60
    machine = results.all[0].machine
    small, large = min(plan.depths), max(plan.depths)
    sizes = [results.select("curves", depth=d)[0].machine["parameters"] for d in (small, large)]
    quick = "**This is a quick run, to see that everything works: its verdicts mean nothing.**"
    return [
        "# What norms do in a small Llama, measured",
        *([quick] if plan is grid.QUICK else []),
        prose(f"""Written by `make claims`: examples/llama trains {len(results.all)} models, and every number below is
            computed from them. `none` has no norm at all, `layer` is LayerNorm with weight and bias, `rms` is RMSNorm,
            `prms:P` is partial RMSNorm over the first P of each row. The norms are truenorm's, before each sublayer and
            before the output matrix."""),
        bullets(
            f"""Model: bytes, width 64, 4 heads, SwiGLU of 176, rotary positions, tied output; {small} to {large}
            layers, {sizes[0]} to {sizes[1]} parameters. Initial weights are normal with deviation 1/sqrt(inputs), those
            that add to the residual stream smaller by sqrt(2 layers): `none` is given a good start.""",
            f"""Training: AdamW, 8 sequences of 64 bytes a step, learning rate 0.003 unless said otherwise, 20 steps of
            warmup, cosine to a tenth, no clipping. {plan.steps} steps and {plan.seeds} seeds; searches:
            {plan.search_steps} steps, {plan.search_seeds} seeds.""",
            f"""Text: the King James Bible, nine tenths to train on. The frequencies of its bytes alone give
            {entropies[0]:.2f} nats per byte, those of pairs {entropies[1]:.2f}. A setting *works* here if every seed
            ends below the middle, {learnt:.2f}.""",
            f"""Machine: {cpu()}; norms with {machine["isa"]}, OpenBLAS with its kernels for {machine["openblas"]}; one
            thread a model. All runs together took {minutes:.0f} minutes of one core.""",
        ),
    ]


def verdict_section(judged):
    return [
        "## Verdicts",
        table(["claim", "verdict", "figures"], [(j.claim, f"**{j.verdict}**", j.figure) for j in judged]),
        "How each is judged; what is neither is *not seen at this size*:",
        bullets(*(f"{j.claim}: {j.rule}." for j in judged)),
    ]


def loss_section(results, plan):
    rows = [
        (kind, *(spread([r.final_valid for r in results.select("curves", kind, d)]) for d in plan.depths))
        for kind in KINDS
    ]
    return [
        "## Loss",
        "![training loss](img/claims-loss.png)",
        prose(f"""Lines are means over seeds, bands reach from the lowest to the highest; what is above
            {plots.LOSS_SHOWN[1]} nats is cut off. Validation loss at the end, mean and deviation over seeds:"""),
        table(["norm", *(f"{d} layers" for d in plan.depths)], rows, " rrr"),
    ]


def gradient_section(results, plan):
    rows = []
    for kind in KINDS:
        for depth in plan.depths:
            runs = results.select("curves", kind, depth)
            first, last = (np.mean([m.layer_spread(r, end) for r in runs]) for end in (False, True))
            steady = np.mean([m.unsteadiness(r) for r in runs])
            rows.append((kind, depth, f"{first:.2f}", f"{last:.2f}", f"{steady:.3f}"))
    return [
        "## Gradients",
        "![gradients](img/claims-gradients.png)",
        prose("""Largest over smallest gradient of a layer, in the first and the last step; and how unsteady the
            gradient is: the deviation over steps of the logarithm of its length, after the warmup."""),
        table(["norm", "layers", "first step", "last step", "unsteadiness"], rows, " rrrr"),
    ]


def drift_section(results, plan):
    rows = []
    for kind in KINDS:
        for depth in plan.depths:
            runs = results.select("curves", kind, depth)
            cells = [np.mean([m.drift(r, what) for r in runs], axis=0) for what in ("in", "stream")]
            rows.append((kind, depth, *(f"{x:.3f}" for pair in cells for x in pair)))
    return [
        "## Covariate shift",
        "![mean and variance of the inputs](img/claims-drift.png)",
        prose("""How far the distribution of what a layer's matrices see goes from its start: its mean in initial
            deviations, and its variance as |ln(variance / initial variance)|; the largest over the steps, averaged over
            layers. Behind a norm this is small by construction: only the norm's own weights can move it. The last two
            columns are of the residual stream, which nothing normalises."""),
        table(["norm", "layers", "mean", "variance", "stream: mean", "stream: variance"], rows, " rrrrr"),
    ]


def search_section(results, plan, learnt):
    rows = []
    for kind in KINDS:
        cells = []
        for depth in plan.rate_depths:
            for bound in (learnt, np.inf):
                good = m.working(results, "rates", "rate", plan.rates, kind, depth, bound)
                cells.append(f"{max(good):g}" if good else "no rate")
        good = m.working(results, "gains", "gain", plan.gains, kind, plan.gain_depth, learnt)
        rows.append((kind, *cells, listed(good) if good else "no scale"))
    names = [n for d in plan.rate_depths for n in (f"{d} layers: works", f"{d} layers: finite")]
    return [
        "## Learning rate and initial scale",
        "![loss over learning rate and scale](img/claims-search.png)",
        prose(f"""The largest learning rate that works (all seeds below {learnt:.2f} nats, dashed) and the largest after
            which the loss is finite at all; and the scales of the initial weights that work, in terms of the usual one.
            Tried: rates {listed(plan.rates)}; scales {listed(plan.gains)}."""),
        table(["norm", *names, f"{plan.gain_depth} layers: scales"], rows, " rrrrr"),
    ]


def gap_section(results, plan):
    runs = {kind: m.kept(results.select("small", kind)) for kind in KINDS}
    level = m.common_train_loss([r for group in runs.values() for r in group])
    measured = [lambda r: r.final_loss, lambda r: r.final_valid, m.best_valid, lambda r: m.gap_at(r, level)]
    rows = [
        (kind, *(spread([measure(r) for r in group]) if group else "diverged" for measure in measured))
        for kind, group in runs.items()
    ]
    return [
        "## Training and validation",
        "![gap](img/claims-gap.png)",
        prose(f"""On {plan.small_text // 1024} KiB of the text, {plan.small_depth} layers, {plan.small_steps} steps:
            enough to learn much of it by heart. The last column is validation less training loss where the training
            loss is {level:.2f}, the lowest that all reach: a net that learns faster is not blamed for having learnt
            more."""),
        table(["norm", "training, end", "validation, end", "validation, lowest", "gap"], rows, " rrrr"),
    ]


def time_section(results, plan):
    rows = []
    for width in plan.widths:
        for kind in TIMED:
            norm, step, rounds = m.times(results, kind, width)
            noise = f"{1e3 * rounds.min():.1f} to {1e3 * rounds.max():.1f}"
            rows.append((width, kind, f"{1e6 * norm:.0f}", f"{1e3 * step:.1f}", noise, f"{norm / step:.1%}"))
    saved = ", ".join(f"{s:.1%}" for s in v.savings(results, plan, "layer", "rms", 1))
    shares = [norm / step for norm, step, _ in (m.times(results, "layer", w) for w in plan.widths)]
    bound = ""
    if max(shares) < v.PAPER:
        bound = f"Here LayerNorm takes {min(shares):.1%} to {max(shares):.1%} of a step: no norm can save as much."
    return [
        "## Time",
        "![time](img/claims-time.png)",
        prose("""Two layers (five norms), 512 tokens, one thread, one model at a time, the kinds in turn; medians over
            steps and rounds. Norm layers in microseconds a step, forward and backward, grade exact; the step in
            milliseconds, with the range of the rounds' medians."""),
        table(["width", "norm", "norm layers, us", "step, ms", "rounds, ms", "share"], rows, "r rrrr"),
        prose(f"""The RMSNorm paper (Zhang & Sennrich 2019) saves 7 to 64 % of the whole time by RMSNorm instead of
            LayerNorm, in the frameworks of its day. {bound} With RMSNorm the step is shorter by {saved}."""),
    ]


def place_section(results, plan):
    rows = []
    for placement in ("pre", "post", "sandwich"):
        for qk in ("none", "rms"):
            groups = [results.select("place", kind, placement=placement, qk=qk) for kind in ("layer", "rms")]
            rows.append((placement, qk, *(spread([r.final_valid for r in group]) for group in groups)))
    return [
        "## Placement and QK norm",
        prose(f"""Not a claim of the article. Validation loss after {plan.search_steps} steps, {plan.place_depth}
            layers, {plan.search_seeds} seeds."""),
        table(["placement", "QK norm", "layer", "rms"], rows, "  rr"),
    ]


def tail():
    return [
        "## Again",
        "    make claims            # trains all of it, and writes this page and its pictures anew\n"
        "    make claims QUICK=1    # under a minute, into build/claims: does everything work?",
        prose("""Losses are the same bits on a machine with the same OpenBLAS and C library; on another one they differ
            in the last digits first, and in more of them with every step. Times are this machine's. What is trained is
            in examples/llama/claims/grid.py, how it is judged in verdicts.py. One width, one text, one optimiser and a
            few hundred steps are no law."""),
    ]


def write(results, plan, entropies, out):
    """Writes claims.md and its pictures; returns the verdicts."""
    learnt = sum(entropies) / 2
    judged = v.judge_all(results, plan, learnt)
    plots.draw_all(results, plan, learnt, out / "img")
    paragraphs = [
        *head(results, plan, entropies, learnt),
        *verdict_section(judged),
        *loss_section(results, plan),
        *gradient_section(results, plan),
        *drift_section(results, plan),
        *search_section(results, plan, learnt),
        *gap_section(results, plan),
        *time_section(results, plan),
        *place_section(results, plan),
        *tail(),
    ]
    partial = out / ".claims.md"
    partial.write_text("\n\n".join(paragraphs) + "\n", encoding="utf-8")
    partial.rename(out / "claims.md")
    return judged
