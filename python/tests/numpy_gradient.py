"""Gradients of the formula of truenorm.norm in long double, by the chain rule, step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy_reference import F64, LD, Values, activated, parameter, rounded, summed, ulp, wide


def slope(gate: Any, act: str) -> Values:
    sigmoid = 1 / (1 + np.exp(-wide(gate)))
    own = sigmoid * (1 - sigmoid)
    return sigmoid + wide(gate) * own if act == "silu" else own


def slope_terms(gate: Any, act: str) -> Values:
    sigmoid = 1 / (1 + np.exp(-wide(gate)))
    return sigmoid + np.abs(wide(gate)) * sigmoid if act == "silu" else sigmoid


def unbroadcast(values: Values, like: Any) -> Values:
    """The sum over the axes along which `like` was broadcast."""
    lead = tuple(range(values.ndim - np.ndim(like)))
    values = values.sum(lead)
    short = tuple(k for k in range(values.ndim - 1) if np.shape(like)[k] == 1)
    return values.sum(short, keepdims=True)


def folded(values: Values, positions: int | None) -> Values:
    return values.reshape(*values.shape[:-1], -1, positions or 1).sum(-1)


def gradients(
    dy: Any, x: Any, weight: Any = None, bias: Any = None, *, kind: str = "rms", eps: float = 1e-6,
    eps_mode: str = "inside", cast: str = "once", weight_offset: float = 0.0, divisor: float | None = None,
    group: int | None = None, partial: int | None = None, positions: int | None = None, residual: Any = None,
    gate: Any = None, gate_order: str = "before", act: str = "silu", mod_scale: Any = None, mod_shift: Any = None,
    dsum: Any = None, **_: Any,
) -> dict[str, tuple[Values, Values]]:  # fmt: skip
    """Each gradient, and a magnitude of what was added up for it."""
    total = wide(x) if residual is None else summed(x, residual, None)[1]
    before, after = (gate is not None and gate_order == order for order in ("before", "after"))
    s = (total * activated(gate, act) if before else total).reshape(*x.shape[:-1], -1, group or x.shape[-1])
    counts = np.arange(s.shape[-1]) < (partial or s.shape[-1])
    number = LD(divisor or counts.sum())
    m = (s * counts).sum(-1, keepdims=True) / number if kind == "layer" else np.zeros_like(s[..., :1])
    share = LD(1) if kind == "l2" and not divisor else number
    v = (counts * (s - m) ** 2).sum(-1, keepdims=True) / share
    sigma = np.sqrt(v)
    half = np.where(v > 0, 0.5 / np.where(v > 0, sigma, 1), 0)
    root, root_slope = {
        "inside": (np.sqrt(v + eps), 0.5 / np.sqrt(v + eps)),
        "outside": (sigma + eps, half),
        "clamp": (np.maximum(sigma, eps), np.where(sigma > eps, half, 0)),
    }[eps_mode]
    h = ((s - m) / root).reshape(x.shape)
    used = rounded(h, x.dtype) if cast == "before_scale" else h
    w = LD(1) if weight is None else parameter(weight, positions) + LD(weight_offset)
    y0 = used * w + (0 if bias is None else parameter(bias, positions))
    factor = LD(1) if mod_scale is None else 1 + wide(mod_scale)
    y1 = y0 * factor + (0 if mod_shift is None else wide(mod_shift))
    # What rounding in float64 is relative to: h is a difference with the mean, y a sum of terms.
    big = np.maximum(np.abs(used), 1)
    terms = (big * np.abs(w) + (0 if bias is None else np.abs(parameter(bias, positions)))) * (1 + np.abs(factor - 1))
    terms = terms + (0 if mod_shift is None else np.abs(wide(mod_shift)))
    d1 = np.broadcast_to(wide(dy), x.shape)
    result: dict[str, tuple[Values, Values]] = {}
    if after:
        result["dgate"] = (d1 * y1 * slope(gate, act), np.abs(d1) * terms * slope_terms(gate, act))
        d1 = d1 * activated(gate, act)
    d0 = d1 * factor
    for name, like, values, large in (
        ("dmod_scale", mod_scale, d1 * y0, np.abs(d1) * terms), ("dmod_shift", mod_shift, d1, np.abs(d1)),
    ):  # fmt: skip
        if like is not None:
            result[name] = (unbroadcast(values, like), unbroadcast(large, like))
    for name, like, values, large in (
        ("dweight", weight, d0 * used, np.abs(d0) * big), ("dbias", bias, d0, np.abs(d0)),
    ):  # fmt: skip
        one = np.zeros(x.shape[-1] // (positions or 1)) if like is None else like
        result[name] = unbroadcast(folded(values, positions), one), unbroadcast(folded(large, positions), one)
    dh = (d0 * w).reshape(s.shape)
    hg = h.reshape(s.shape)
    droot, dm = -(dh * hg).sum(-1, keepdims=True) / root, -dh.sum(-1, keepdims=True) / root
    dm = dm if kind == "layer" else 0 * dm
    ds = dh / root + counts * (2 * droot * root_slope * (s - m) / share + dm / number)
    bigg = np.maximum(np.abs(hg), 1)
    large = (
        np.abs(dh) + np.abs(dh).mean(-1, keepdims=True) + bigg * np.abs(dh * bigg).sum(-1, keepdims=True) / share
    ) / root
    ds, large = ds.reshape(x.shape), large.reshape(x.shape)
    if before:
        result["dgate"] = (ds * total * slope(gate, act), np.abs(large * total) * slope_terms(gate, act))
        ds, large = ds * activated(gate, act), large * np.abs(activated(gate, act))
    ds = ds if dsum is None else ds + wide(dsum)
    large = large if dsum is None else np.maximum(large, np.abs(wide(dsum)))
    return {**result, "dx": (ds, large), "dresidual": (ds, large)}


def assert_gradient(got: Any, want: tuple[Values, Values]) -> None:
    """Within 0.51 ulp (float64: nothing) and 32 float64 roundings of what was added up."""
    values, large = want
    assert got.shape == values.shape
    slack = LD(2) ** -48 * large
    bound = slack if got.dtype == F64 else LD(0.51) * ulp(values, got.dtype) + slack
    bad = ~(np.abs(wide(got) - values) <= bound)
    assert not bad.any(), f"{np.asarray(got)[bad][:3]} for {values[bad][:3]}"
