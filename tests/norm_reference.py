"""The norms in long double, rounded where truenorm.h says, and how far a result is from that."""

import ml_dtypes
import numpy as np

LD = np.longdouble
BF16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = {"f64": np.dtype("f8"), "f32": np.dtype("f4"), "bf16": BF16, "f16": np.dtype("f2")}
# Fraction bits and smallest normal exponent.
FORMATS = {
    "f64": (52, -1022),
    "f32": (23, -126),
    "bf16": (7, -126),
    "f16": (10, -14),
    "e4m3": (3, -6),
    "e5m2": (2, -14),
}


def draw(shape, dtype="f32", seed=0, scale=1.0, shift=0.0):
    values = np.random.default_rng(seed).standard_normal(shape) * scale + shift
    return values.astype(np.float32).astype(DTYPES[dtype]) if dtype == "bf16" else values.astype(DTYPES[dtype])


def ulp(values, dtype):
    bits, least = FORMATS[dtype]
    exponent = np.where(values == 0, least, np.frexp(values)[1] - 1)
    return np.ldexp(LD(1), np.maximum(exponent, least) - bits)


def rounded(values, dtype):
    unit = ulp(values, dtype)
    return np.rint(values / unit) * unit


def name_of(dtype):
    return next(name for name, d in DTYPES.items() if d == dtype)


def wide(a):
    return None if a is None else a.astype(np.float64).astype(LD)


def activation(gate, act):
    sigmoid = 1 / (1 + np.exp(-wide(gate)))
    return sigmoid * wide(gate) if act == "silu" else sigmoid


def reference(
    x, kind="rms", eps=1e-6, weight=None, bias=None, residual=None, gate=None, order=None, act="silu", group=0,
    partial=0, divisor=0.0, eps_mode="inside", offset=0.0, cast="once",
):  # fmt: skip
    """The formula of truenorm.h in long double, before the last rounding."""
    s = wide(x)
    if residual is not None:
        s = rounded(s + wide(residual), name_of(x.dtype))
    if order == "before":
        s = s * activation(gate, act)
    shape = s.shape
    s = s.reshape(*shape[:-1], -1, group or shape[-1])
    seen = s[..., : partial or None]
    count = LD(divisor or seen.shape[-1])
    mean = seen.sum(-1, keepdims=True) / count if kind == "layer" else LD(0)
    v = ((seen - mean) ** 2).sum(-1, keepdims=True) / (1 if kind == "l2" else count)
    eps = LD(eps)
    root = {"inside": np.sqrt(v + eps), "outside": np.sqrt(v) + eps, "clamp": np.maximum(np.sqrt(v), eps)}[eps_mode]
    h = ((s - mean) / root).reshape(shape)
    if cast == "before_scale":
        h = rounded(h, name_of(x.dtype))
    if cast == "t5" and weight is not None and weight.dtype.itemsize == 2:
        h = rounded(h, name_of(weight.dtype))
    y = h if weight is None else h * (wide(weight) + LD(offset))
    y = y if bias is None else y + wide(bias)
    return y * activation(gate, act) if order == "after" else y


def assert_close(got, want, ulps=1.0):
    dtype = name_of(got.dtype)
    assert got.shape == want.shape
    error = np.abs(wide(got) - want) / ulp(want, dtype)
    assert not np.isnan(error).any()
    assert error.size == 0 or error.max() <= ulps
