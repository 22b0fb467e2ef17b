"""The formula of truenorm.norm in long double, rounded where its documentation says; how far a result is from it."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

LD = np.longdouble
BF16 = np.dtype(ml_dtypes.bfloat16)
F64, F32, F16 = np.dtype("f8"), np.dtype("f4"), np.dtype("f2")
FLOATS = (F64, F32, BF16, F16)
# Fraction bits and the exponent of the smallest normal number.
FORMATS = {F64: (52, -1022), F32: (23, -126), BF16: (7, -126), F16: (10, -14)}

Values = np.ndarray[Any, Any]


class Expected(NamedTuple):
    y: Values  # before the last rounding
    sum: Values | None
    mean: Values
    rstd: Values
    terms: Values  # the largest magnitude that went into each y
    doubt: Values  # how far off y is if what lies within 0.002 ulp of a tie at an inner cast is rounded the other way


def draw(shape: Any, dtype: Any = F32, seed: int = 0, scale: float = 1.0, shift: float = 0.0) -> Values:
    values = np.random.default_rng(seed).standard_normal(shape) * scale + shift
    return np.asarray(values.astype(np.float32) if dtype == BF16 else values).astype(dtype)


def ulp(values: Values, dtype: Any) -> Values:
    bits, least = FORMATS[np.dtype(dtype)]
    exponent = np.where(values == 0, least, np.frexp(values)[1] - 1)
    return np.ldexp(LD(1), np.maximum(exponent, least) - bits)


def rounded(values: Values, dtype: Any) -> Values:
    unit = ulp(values, dtype)
    near = np.rint(values / unit) * unit
    return np.where(np.abs(near) > 65504, np.copysign(np.inf, near), near) if dtype == F16 else near


def doubtful(values: Values, dtype: Any) -> Values:
    """An ulp where rounding hangs in the balance, else 0."""
    unit = ulp(values, dtype)
    scaled = np.abs(values / unit)
    return np.where(np.abs(scaled - np.floor(scaled) - LD(0.5)) < 0.002, unit, LD(0))


def promoted(a: Any, b: Any) -> Any:
    """The smallest of the four formats that holds both."""
    if a == b:
        return a
    return F64 if F64 in (a, b) else F32


def wide(a: Any) -> Values:
    return np.asarray(a).astype(np.float64).astype(LD)


def activated(gate: Any, act: str) -> Values:
    sigmoid = 1 / (1 + np.exp(-wide(gate)))
    return sigmoid * wide(gate) if act == "silu" else sigmoid


def default_dtype(x: Any, weight: Any, cast: str) -> Any:
    if cast == "once":
        return x.dtype
    if cast == "before_scale":
        return x.dtype if weight is None else promoted(x.dtype, weight.dtype)
    if weight is not None and weight.dtype.itemsize == 2:
        return weight.dtype
    return F64 if x.dtype == F64 else F32


def parameter(values: Any, positions: int | None) -> Values:
    return np.repeat(wide(values), positions or 1, axis=-1)


def summed(x: Any, residual: Any, sum_dtype: Any) -> tuple[Values, Values]:
    """x + residual: in float64, and rounded (16-bit formats through float32)."""
    exact = rounded(wide(x) + wide(residual), F64)
    dtype = np.dtype(sum_dtype or x.dtype)
    return exact, rounded(rounded(exact, F32) if dtype.itemsize == 2 else exact, dtype)


def reference(
    x: Any, weight: Any = None, bias: Any = None, *, kind: str = "rms", eps: float = 1e-6, eps_mode: str = "inside",
    cast: str = "once", weight_offset: float = 0.0, divisor: float | None = None, group: int | None = None,
    partial: int | None = None, positions: int | None = None, residual: Any = None, sum: str = "rounded",
    sum_dtype: Any = None, gate: Any = None, gate_order: str = "before", act: str = "silu", mod_scale: Any = None,
    mod_shift: Any = None, round_rstd: bool = False, round_offset: bool = False, round_product: bool = False,
    out_dtype: Any = None, **_: Any,
) -> Expected:  # fmt: skip
    total = None
    s = wide(x)
    if residual is not None:
        s, total = summed(x, residual, sum_dtype)
        s = total if sum == "rounded" else s
    if gate is not None and gate_order == "before":
        s = s * activated(gate, act)
    grouped = s.reshape(*s.shape[:-1], -1, group or s.shape[-1])
    seen = grouped[..., : partial or None]
    count = LD(divisor or (1 if kind == "l2" else seen.shape[-1]))
    mean = (
        seen.sum(-1, keepdims=True) / LD(divisor or seen.shape[-1]) if kind == "layer" else np.zeros_like(seen[..., :1])
    )
    v = ((seen - mean) ** 2).sum(-1, keepdims=True) / count
    e = LD(eps)
    with np.errstate(divide="ignore", invalid="ignore"):
        root = {"inside": np.sqrt(v + e), "outside": np.sqrt(v) + e, "clamp": np.maximum(np.sqrt(v), e)}[eps_mode]
        rstd = np.where(root == 0, 0, 1 / root)
    used = rounded(rstd, x.dtype) if round_rstd else rstd
    h = ((grouped - mean) * used).reshape(s.shape)
    doubt = np.abs((grouped - mean) * doubtful(rstd, x.dtype)).reshape(s.shape) if round_rstd else np.zeros_like(h)
    narrow = x.dtype if cast == "before_scale" else weight.dtype if cast == "t5" and weight is not None else F64
    if narrow != F64 and (cast == "before_scale" or narrow.itemsize == 2):
        h, doubt = rounded(h, narrow), doubt + doubtful(h, narrow)
    y = h
    if weight is not None:
        w = parameter(weight, positions) + LD(weight_offset)
        w = rounded(w, weight.dtype) if round_offset and weight_offset else w
        y, doubt = y * w, doubt * np.abs(w)
    target = np.dtype(out_dtype or default_dtype(x, weight, cast))
    if round_product and target != F64:
        y, doubt = rounded(y, target), doubt + doubtful(y, target)
    terms = np.maximum(np.abs(y), np.abs(y) / np.maximum(np.abs(h), LD(1e-300)))
    if bias is not None:
        y, terms = y + parameter(bias, positions), np.maximum(terms, np.abs(parameter(bias, positions)))
    if mod_scale is not None:
        factor = 1 + wide(mod_scale)
        y, terms, doubt = y * factor, terms * (1 + np.abs(wide(mod_scale))), doubt * np.abs(factor)
    if mod_shift is not None:
        y, terms = y + wide(mod_shift), np.maximum(terms, np.abs(wide(mod_shift)))
    if gate is not None and gate_order == "after":
        factor = activated(gate, act)
        y, terms, doubt = y * factor, terms * np.abs(factor), doubt * np.abs(factor)
    mean, rstd = (v[..., 0] if group else v[..., 0, 0] for v in (mean, rstd))
    return Expected(y, total, mean, rstd, terms, doubt)


def assert_close(got: Any, want: Expected, roundings: float = 0.501, f64_ulps: float = 8.0) -> None:
    """Within `roundings` ulp of the result and what float64 arithmetic leaves of the largest term."""
    assert got.shape == want.y.shape
    if got.size == 0:
        return
    with np.errstate(invalid="ignore"):  # inf - inf
        error = np.abs(wide(got) - want.y)
    if got.dtype == F64:
        bound = f64_ulps * ulp(want.terms, F64)
    else:
        bound = LD(roundings) * ulp(want.y, got.dtype) + want.terms * LD(2) ** -44
    bound = bound + np.where(want.doubt > 0, 1.1 * want.doubt + ulp(want.y, got.dtype), 0)
    overflow = np.isinf(wide(got)) & (np.sign(wide(got)) * want.y >= (65519 if got.dtype == F16 else np.inf))
    bad = ~(error <= bound) & ~overflow & ~(np.isnan(wide(got)) & np.isnan(want.y))
    assert not bad.any(), f"{np.asarray(got)[bad][:3]} for {want.y[bad][:3]}"


def same_bits(a: Any, b: Any) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
