"""Two implementations of a norm on the same activations."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

import truenorm

from .errors import ToolError, first_line
from .ulps import DTYPES, EDGES, ERROR_EDGES, FORMATS, Array, Dtype, Histogram, distance, error, exact_norm, name_of

CHUNK = 1 << 20
Kind = Literal["rms", "layer", "l2"]
# (x, weight, bias) -> y
Implementation = Callable[[Array, Array | None, Array | None], Array]


@dataclass(frozen=True)
class Norm:
    kind: Kind
    eps: float


def implementation(name: str, norm: Norm) -> Implementation:
    """truenorm[:GRADE][:CAST], torch, numpy32, llama, jax, exact, or MODULE:FUNCTION."""
    base, *options = name.split(":")
    if base == "truenorm":
        return ours(options, norm)
    makers = {"torch": torch_norm, "numpy32": numpy32, "llama": llama, "jax": jax_norm, "exact": exact}
    if base in makers:
        if options:
            raise ToolError(f"{name}: {base} has no options")
        return makers[base](norm)
    if len(options) == 1:
        return users(base, options[0], norm)
    known = ", ".join(["truenorm[:exact|fast][:once|before_scale|t5]", *makers, "MODULE:FUNCTION"])
    raise ToolError(f"{name}: no such implementation; there are {known}")


def ours(options: Sequence[str], norm: Norm) -> Implementation:
    given: dict[str, Any] = {}
    for option in options:
        key = "grade" if option in ("exact", "fast") else "cast"
        if option not in ("exact", "fast", "once", "before_scale", "t5"):
            raise ToolError(f"truenorm:{option}: the options are exact or fast, and once, before_scale or t5")
        given[key] = option

    def run(x: Array, weight: Array | None, bias: Array | None) -> Array:
        return np.asarray(truenorm.norm(x, weight, bias, kind=norm.kind, eps=norm.eps, **given))

    return run


def load(module: str, hint: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as problem:
        raise ToolError(f"{hint}: cannot import {module}: {first_line(problem)}") from problem


def torch_norm(norm: Norm) -> Implementation:
    torch = load("torch", "torch")
    functional = torch.nn.functional

    def tensor(a: Array | None) -> Any:
        if a is None:
            return None
        a = np.ascontiguousarray(a)
        return (
            torch.from_numpy(a.view(np.int16)).view(torch.bfloat16)
            if a.dtype == DTYPES["bf16"]
            else torch.from_numpy(a)
        )

    def run(x: Array, weight: Array | None, bias: Array | None) -> Array:
        shape = (x.shape[-1],)
        if norm.kind == "rms":
            y = functional.rms_norm(tensor(x), shape, tensor(weight), norm.eps)
            y = y if bias is None else y + tensor(bias)
        elif norm.kind == "layer":
            y = functional.layer_norm(tensor(x), shape, tensor(weight), tensor(bias), norm.eps)
        else:
            raise ToolError("torch: normalize clamps with eps; there is no l2 norm with eps inside the root")
        return as_numpy(y, torch)

    return run


def as_numpy(y: Any, torch: Any) -> Array:
    if y.dtype == torch.bfloat16:
        return np.asarray(y.view(torch.int16).numpy()).view(DTYPES["bf16"])
    return np.asarray(y.numpy())


def jax_norm(norm: Norm) -> Implementation:
    jax, jnp = load("jax", "jax"), load("jax.numpy", "jax")

    def formula(x: Any, weight: Any, bias: Any) -> Any:
        s = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        s = s - s.mean(-1, keepdims=True) if norm.kind == "layer" else s
        square = (s * s).sum(-1, keepdims=True) if norm.kind == "l2" else (s * s).mean(-1, keepdims=True)
        y = s * jax.lax.rsqrt(square + norm.eps)
        y = y if weight is None else y * weight
        return (y if bias is None else y + bias).astype(x.dtype)

    compiled = jax.jit(formula)
    return lambda x, weight, bias: np.asarray(compiled(x, weight, bias))


def numpy32(norm: Norm) -> Implementation:
    """What one writes in NumPy: everything in f32, rounded to x's dtype at the end."""

    def run(x: Array, weight: Array | None, bias: Array | None) -> Array:
        s = x.astype(np.float32)
        s = s - s.mean(-1, keepdims=True) if norm.kind == "layer" else s
        square = (s * s).sum(-1, keepdims=True) if norm.kind == "l2" else (s * s).mean(-1, keepdims=True)
        y = s / np.sqrt(square + np.float32(norm.eps))
        y = y if weight is None else y * weight.astype(np.float32)
        y = y if bias is None else y + bias.astype(np.float32)
        return np.asarray(y.astype(x.dtype))

    return run


def llama(norm: Norm) -> Implementation:
    """LlamaRMSNorm.forward in transformers: weight * (x32 * rsqrt(mean(x32^2) + eps)).to(x.dtype)."""
    if norm.kind != "rms":
        raise ToolError(f"llama: is an RMSNorm, not {norm.kind}")

    def run(x: Array, weight: Array | None, bias: Array | None) -> Array:
        s = x.astype(np.float32)
        h = s * (np.float32(1) / np.sqrt((s * s).mean(-1, keepdims=True) + np.float32(norm.eps)))
        h = h.astype(x.dtype)
        y = h if weight is None else weight * h
        return np.asarray(y if bias is None else y + bias)

    return run


def exact(norm: Norm) -> Implementation:
    """The formula in long double, rounded once (through f64)."""

    def run(x: Array, weight: Array | None, bias: Array | None) -> Array:
        with np.errstate(over="ignore"):
            return exact_norm(x, weight, bias, norm.kind, norm.eps).astype(np.float64).astype(x.dtype)

    return run


def users(module: str, function: str, norm: Norm) -> Implementation:
    """function(x, weight, bias, eps) of an importable module; the current folder counts."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    call = getattr(load(module, f"{module}:{function}"), function, None)
    if not callable(call):
        raise ToolError(f"{module}:{function}: no such function")

    def run(x: Array, weight: Array | None, bias: Array | None) -> Array:
        try:
            return np.asarray(call(x, weight, bias, norm.eps))
        except Exception as problem:
            raise ToolError(f"{module}:{function}: {type(problem).__name__}: {first_line(problem)}") from problem

    return run


# ---- activations -------------------------------------------------------------------------------------------


def load_array(path: Path, dtype: Dtype | None = None) -> Array:
    """A .npy file of floats; bf16 as ml_dtypes writes it (2 opaque bytes)."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as problem:
        raise ToolError(f"{path}: {first_line(problem)}") from problem
    if not isinstance(array, np.ndarray):
        raise ToolError(f"{path}: not a .npy file")
    if array.dtype.kind == "V" and array.dtype.itemsize == 2:
        array = array.view(DTYPES["bf16"])
    if array.dtype not in FORMATS and dtype is None:
        raise ToolError(f"{path}: {array.dtype}, not f64, f32, bf16 or f16 (see --dtype)")
    return array if dtype is None else array.astype(dtype)


def generated_weight(n: int, dtype: Dtype | None, seed: int) -> Array:
    """Gains between 1/2 and 3/2, so that cast points show."""
    return np.random.default_rng(seed + 1).uniform(0.5, 1.5, n).astype(np.float32).astype(dtype or np.float32)


def activations(
    files: Sequence[Path], rows: int, n: int, dtype: Dtype | None, seed: int
) -> Iterator[tuple[str, Array]]:
    """The files, or rows like a residual stream's: normal, a few channels 50 times larger, scales from row to row."""
    for path in files:
        array = load_array(path, dtype)
        if array.ndim == 0 or array.shape[-1] == 0:
            raise ToolError(f"{path}: shape {list(array.shape)} has no rows")
        yield str(path), array.reshape(-1, array.shape[-1])
    if files:
        return
    random = np.random.default_rng(seed)
    x = random.standard_normal((rows, n), dtype=np.float32) * np.exp2(random.uniform(-3, 3, (rows, 1))).astype(
        np.float32
    )
    x[:, random.integers(0, n, max(1, n // 500))] *= 50
    yield f"generated {rows} x {n}, seed {seed}", x.astype(dtype or np.float32)


# ---- comparison --------------------------------------------------------------------------------------------


@dataclass
class Result:
    """One input: a against b, and each against the exact value."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    between: Histogram = field(default_factory=lambda: Histogram(EDGES))
    errors: tuple[Histogram, Histogram] = field(
        default_factory=lambda: (Histogram(ERROR_EDGES), Histogram(ERROR_EDGES))
    )


def run(name: str, call: Implementation, x: Array, weight: Array | None, bias: Array | None) -> Array:
    try:
        y = call(x, weight, bias)
    except (RuntimeError, TypeError, ValueError) as problem:
        raise ToolError(f"{name}: {first_line(problem)}") from problem
    if y.shape != x.shape or y.dtype not in FORMATS:
        raise ToolError(f"{name}: gave {y.dtype} {list(y.shape)} for x {x.dtype} {list(x.shape)}")
    return y


def compare(
    names: tuple[str, str],
    norm: Norm,
    inputs: Iterable[tuple[str, Array]],
    parameters: tuple[Array | None, Array | None],
    each: Callable[[Iterable[Any]], Iterable[Any]],
) -> list[Result]:
    """Rows in chunks. Results of different dtypes are compared in the narrower one."""
    calls = [implementation(name, norm) for name in names]
    results = []
    for title, x in inputs:
        for role, value in zip(("weight", "bias"), parameters, strict=True):
            if value is not None and value.shape != x.shape[-1:]:
                raise ToolError(f"{role} of shape {list(value.shape)} for rows of {x.shape[-1]}")
        step = max(1, CHUNK // x.shape[-1])
        result = None
        for start in each(range(0, len(x), step)):
            part = np.ascontiguousarray(x[start : start + step])
            pair = [run(n, c, part, *parameters) for n, c in zip(names, calls, strict=True)]
            narrow = min((y.dtype for y in pair), key=lambda d: (d.itemsize, FORMATS[d][0]))
            result = result or Result(title, name_of(narrow), x.shape)
            a, b = (y.astype(narrow) for y in pair)
            result.between.add(distance(a, b))
            want = exact_norm(part, *parameters, norm.kind, norm.eps)
            for histogram, y in zip(result.errors, pair, strict=True):
                histogram.add(error(y, want))
        if result is None:
            raise ToolError(f"{title}: no rows")
        results.append(result)
    return results
