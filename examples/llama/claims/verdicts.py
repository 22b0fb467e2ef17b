"""Each claim, how it is judged, and the judgement."""

from dataclasses import dataclass

import measures as m
import numpy as np

HOLDS, FAILS, UNSEEN = "holds", "does not hold", "not seen at this size"
NORMS = ["layer", "rms"]

CLEARLY = 1.5  # "less" and "wider" mean at least this many times
NATS = 0.005  # a smaller difference of losses means nothing
PAPER = 0.07  # the smallest saving that the RMSNorm paper reports
FASTER = 0.03  # of the partial norm


@dataclass
class Verdict:
    claim: str
    verdict: str
    figure: str
    rule: str


def times_as_claimed(ratios, factor=CLEARLY):
    """Ratios above 1 are as claimed."""
    if not ratios:
        return UNSEEN
    if all(r >= factor for r in ratios):
        return HOLDS
    return FAILS if all(r <= 1 for r in ratios) else UNSEEN


def better_by(differences, least):
    """Differences above 0 are as claimed; the mean must be two standard errors and `least` away from 0."""
    mean, error = m.mean_and_error(differences)
    if mean > max(2 * error, least):
        return HOLDS
    return FAILS if mean < -max(2 * error, least) else UNSEEN


def average(results, group, kind, depth, measure):
    return float(np.mean([measure(r) for r in results.select(group, kind, depth)]))


def shown(value, digits=3):
    return "inf" if not np.isfinite(value) else f"{value:.{digits}g}"


def by_depth(plan, figures):
    return "; ".join(f"depth {d}: {f}" for d, f in zip(plan.depths, figures, strict=True))


def covariate_shift(results, plan, claim, which, kinds, what):
    """Of the mean (which = 0) or the variance (1)."""

    def figure(kind, depth):
        return average(results, "curves", kind, depth, lambda r: m.drift(r)[which])

    found = [[figure(k, d) for k in ["none", *kinds]] for d in plan.depths]
    return Verdict(
        f"Less internal covariate shift: {claim}",
        times_as_claimed([none / n for none, *norms in found for n in norms]),
        f"{what}, none, {', '.join(kinds)}: " + by_depth(plan, [", ".join(map(shown, row)) for row in found]),
        f"holds if none's is {CLEARLY} times as large or more at every depth; does not if it is nowhere larger",
    )


def gradients_over_layers(results, plan):
    depth = max(plan.depths)
    none = average(results, "curves", "none", depth, m.layer_spread)
    norms = [average(results, "curves", k, depth, m.layer_spread) for k in NORMS]
    return Verdict(
        "Stable gradients: alike in all layers at the start",
        times_as_claimed([none / n for n in norms]),
        f"largest over smallest gradient of a layer, depth {depth}: none {shown(none)}, layer {shown(norms[0])}, "
        f"rms {shown(norms[1])}",
        f"holds if none's is {CLEARLY} times as large or more; does not if it is not larger",
    )


def gradients_over_steps(results, plan):
    ratios, figures = [], []
    for depth in plan.depths:
        none = average(results, "curves", "none", depth, m.unsteadiness)
        norms = [average(results, "curves", k, depth, m.unsteadiness) for k in NORMS]
        ratios += [none / n for n in norms]
        figures.append(f"{shown(none)}, {shown(norms[0])}, {shown(norms[1])}")
    return Verdict(
        "Stable gradients: steady during training",
        times_as_claimed(ratios),
        f"deviation of ln(gradient) over steps, none, layer, rms: {by_depth(plan, figures)}",
        f"holds if none's is {CLEARLY} times as large or more at every depth; does not if it is nowhere larger",
    )


def times_none(values, none):
    """value / none for each; nothing, where neither works."""
    return [value / none if none else np.inf for value in values if value or none]


def learning_rate(results, plan, learnt):
    ratios, figures = [], []
    for depth in plan.rate_depths:
        most = {
            k: max(m.working(results, "rates", "rate", plan.rates, k, depth, learnt), default=0.0)
            for k in ["none", *NORMS]
        }
        ratios += times_none([most[k] for k in NORMS], most["none"])
        figures.append(f"depth {depth}: none {most['none']:g}, layer {most['layer']:g}, rms {most['rms']:g}")
    return Verdict(
        "Easier learning rate",
        times_as_claimed(ratios, 2),
        f"largest rate that works: {'; '.join(figures)}",
        "holds if twice none's or more at every depth; does not if nowhere more; works: see above",
    )


def initialisation(results, plan, learnt):
    spans = {
        k: m.span(m.working(results, "gains", "gain", plan.gains, k, plan.gain_depth, learnt)) for k in ["none", *NORMS]
    }
    return Verdict(
        "Easier initialisation",
        times_as_claimed(times_none([spans[k] for k in NORMS], spans["none"]), 2),
        "largest over smallest scale of the initial weights that works: "
        + ", ".join(f"{k} {spans[k]:g}" for k in spans)
        + f" (tried: {plan.gains[0]:g} to {plan.gains[-1]:g} times the usual)",
        f"holds if the ranges are twice none's or more, at depth {plan.gain_depth}; does not if not wider",
    )


def generalisation(results, plan):
    runs = {k: m.kept(results.select("small", k)) for k in ["none", *NORMS]}
    if len({len(group) for group in runs.values()}) > 1:
        return Verdict(
            "Better generalisation", UNSEEN, "a run diverged: there is nothing to compare", "needs all seeds"
        )
    level = m.common_train_loss([r for group in runs.values() for r in group])
    gaps = {k: [m.gap_at(r, level) for r in group] for k, group in runs.items()}
    best = {k: float(np.mean([m.best_valid(r) for r in group])) for k, group in runs.items()}
    judged = [better_by(np.subtract(gaps["none"], gaps[k]), NATS) for k in NORMS]
    return Verdict(
        "Better generalisation",
        judged[0] if judged[0] == judged[1] else UNSEEN,
        f"gap between validation and training loss when the latter is {level:.2f}: "
        + ", ".join(f"{k} {np.mean(gaps[k]):.3f}" for k in gaps)
        + "; lowest validation loss: "
        + ", ".join(f"{k} {best[k]:.3f}" for k in best),
        f"holds if both gaps are smaller by 2 standard errors over seeds and {NATS} nats; does not if larger by that",
    )


def paired(results, plan, worse, better):
    """Differences of the final validation loss for the same depth and seed."""
    pairs = []
    for depth in plan.depths:
        a, b = results.select("curves", worse, depth), results.select("curves", better, depth)
        pairs += [x.final_valid - y.final_valid for x, y in zip(a, b, strict=True)]
    return pairs


def better(results, plan):
    pairs = paired(results, plan, "layer", "rms")
    mean, error = m.mean_and_error(pairs)
    return Verdict(
        "RMSNorm is perhaps better than LayerNorm",
        better_by(pairs, NATS),
        f"validation loss of layer less that of rms: {mean:+.4f} +- {error:.4f} nats, {len(pairs)} pairs",
        f"holds if above 2 standard errors over depths and seeds and {NATS} nats; does not if below minus that",
    )


def as_good(results, plan):
    pairs = paired(results, plan, "prms:0.25", "rms")
    mean, error = m.mean_and_error(pairs)
    verdict = HOLDS if mean + 2 * error < NATS else FAILS if mean - 2 * error > NATS else UNSEEN
    return Verdict(
        "Partial RMSNorm (25 %) is as good as RMSNorm",
        verdict,
        f"validation loss of prms:0.25 less that of rms: {mean:+.4f} +- {error:.4f} nats, {len(pairs)} pairs",
        f"holds if below {NATS} nats, 2 standard errors added; does not if above, 2 subtracted",
    )


def savings(results, plan, slow, fast, which):
    """1 - fast / slow for each width, of the norm layers (0) or the step (1)."""
    return [1 - m.times(results, fast, w)[which] / m.times(results, slow, w)[which] for w in plan.widths]


def cheaper(results, plan, claim, slow, fast, which, least):
    saved = savings(results, plan, slow, fast, which)
    verdict = HOLDS if min(saved) >= least else FAILS if max(saved) <= 0 else UNSEEN
    return Verdict(
        claim,
        verdict,
        "saved: " + ", ".join(f"{s:.1%} at width {w}" for s, w in zip(saved, plan.widths, strict=True)),
        f"holds if {least:.0%} or more at every width; does not if nothing at any",
    )


def judge_all(results, plan, learnt):
    return [
        covariate_shift(results, plan, "variance", 1, NORMS, "largest change of ln(variance) of a layer's input"),
        covariate_shift(results, plan, "mean, LayerNorm", 0, ["layer"], "largest change, in deviations"),
        covariate_shift(results, plan, "mean, RMSNorm", 0, ["rms"], "largest change, in deviations"),
        gradients_over_layers(results, plan),
        gradients_over_steps(results, plan),
        initialisation(results, plan, learnt),
        learning_rate(results, plan, learnt),
        generalisation(results, plan),
        cheaper(results, plan, "RMSNorm is cheaper than LayerNorm: the layer itself", "layer", "rms", 0, PAPER),
        cheaper(results, plan, "RMSNorm saves 7-64 % of the whole step", "layer", "rms", 1, PAPER),
        cheaper(results, plan, "Partial RMSNorm (6.25 %) is cheaper than RMSNorm: the layer itself", "rms",
                "prms:0.0625", 0, FASTER),
        better(results, plan),
        as_good(results, plan),
    ]  # fmt: skip
