"""Numbers that claims are judged by, each from the runs of one setting or of two."""

import numpy as np

from results import smooth

WARM = 20  # steps; the learning rate rises until then
SMALL_WINDOW = 50  # steps over which the training loss on the small text is averaged


def mean_and_sd(values):
    values = np.asarray(values, dtype=float)
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def mean_and_error(values):
    mean, sd = mean_and_sd(values)
    return mean, sd / len(values) ** 0.5


def kept(runs):
    """Those that did not diverge."""
    return [r for r in runs if not r.diverged]


# ---- covariate shift --------------------------------------------------------------------------------


def drift(result, what="in"):
    """How far mean and variance of what the layers see go from where they began: the largest distance over the steps,
    in initial deviations and as |ln(variance / initial variance)|, each averaged over the layers."""
    if result.diverged:
        return np.inf, np.inf
    _, mean = result.series(f"{what}_mean")
    _, variance = result.series(f"{what}_variance")
    shift = np.abs(mean - mean[0]) / np.sqrt(variance[0])
    scale = np.abs(np.log(variance / variance[0]))
    return float(shift.max(axis=0).mean()), float(scale.max(axis=0).mean())


# ---- gradients --------------------------------------------------------------------------------------


def layer_spread(result, last=False):
    """The largest gradient of a layer over the smallest one, in the first step or the last."""
    _, gradient = result.series("layer_gradient")
    row = gradient[-1 if last else 0]
    return float(row.max() / row.min()) if np.isfinite(row).all() else np.inf


def unsteadiness(result):
    """The standard deviation over steps of ln(length of the gradient), after the warmup."""
    if result.diverged:
        return np.inf
    return float(np.std(np.log(result.gradient[WARM:])))


# ---- searches ---------------------------------------------------------------------------------------


def works(runs, learnt):
    """Every seed ends with a validation loss below `learnt`."""
    return all(np.isfinite(r.final_valid) and r.final_valid < learnt for r in runs)


def working(results, group, setting, values, kind, depth, learnt):
    return [v for v in values if works(results.select(group, kind, depth, **{setting: v}), learnt)]


def span(values):
    """How many times the largest is the smallest; 0 of none."""
    return max(values) / min(values) if values else 0.0


# ---- generalisation ---------------------------------------------------------------------------------


def valid_series(result):
    steps = sorted(result.valid)
    return np.array(steps), np.array([result.valid[s] for s in steps])


def best_valid(result):
    return np.inf if result.diverged else float(np.nanmin(valid_series(result)[1]))


def common_train_loss(runs):
    """The lowest training loss that all of them reach."""
    return max(float(smooth(r.loss, SMALL_WINDOW).min()) for r in runs)


def gap_at(result, train_loss):
    """Validation loss less training loss where the training loss first is `train_loss`; the validation loss is that of
    the middle of the steps which the training loss is averaged over."""
    last = int(np.argmax(smooth(result.loss, SMALL_WINDOW) <= train_loss)) + 1
    middle = last - (min(last, SMALL_WINDOW) - 1) / 2
    return float(np.interp(middle, *valid_series(result))) - train_loss


# ---- time -------------------------------------------------------------------------------------------


def times(results, kind, width):
    """Medians over steps and rounds, in seconds: of the norm layers, of the step; and the latter's of each round."""
    runs = results.select("time", kind, width=width)
    norm = np.array([np.median(r.norm_s[2:]) for r in runs])
    step = np.array([np.median(r.step_s[2:]) for r in runs])
    return float(np.median(norm)), float(np.median(step)), step
