"""Recognise a norm in a graph of primitive operators, such as a function body or an old exporter's output.

The graph is interpreted over the terms of terms.py instead of over arrays: integers and constants are computed, and
each floating-point operator must turn one step of a norm into its next step. Names, order and number of nodes do
not matter; an operator that does not fit ends the attempt with its name. So nothing is taken for a norm that is
not one, and what is recognised is computed by the formula, not by the graph's own steps: E[x^2] - E[x]^2 becomes
the two-pass variance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from .kernels import Dtype, Unsupported, holds
from .terms import Centred, Const, Data, Normalised, Shape, Square, Stat, Term

Attributes = dict[str, Any]


class Interpreter:
    """Terms for every value of a graph, given the shapes and dtypes of its inputs."""

    def __init__(self, model: onnx.ModelProto, inputs: Mapping[str, tuple[Shape, Dtype]]) -> None:
        self.opset_imports = list(model.opset_import)
        self.terms: dict[str, Term] = {}
        for tensor in model.graph.initializer:
            self.terms[tensor.name] = Const(onnx.numpy_helper.to_array(tensor))
        for name, (shape, dtype) in inputs.items():
            self.terms[name] = Data(name, shape, dtype)
        for node in model.graph.node:
            self.step(node)

    def step(self, node: onnx.NodeProto) -> None:
        args = [self.terms.get(name) for name in node.input]
        attrs = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        result: Term | None = None
        if all(isinstance(a, Const) for a, name in zip(args, node.input, strict=True) if name):
            if any(a.type in (a.GRAPH, a.GRAPHS) for a in node.attribute) or node.op_type.startswith("Random"):
                raise Unsupported(f"operator {node.op_type}")
            self.compute(node)
            return
        rule = RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        if rule is not None and len(node.output) == 1:
            result = rule(attrs, *args)
        if result is None:
            raise Unsupported(f"operator {node.op_type} (node {node.name or node.output[0]}): not a step of a norm")
        self.terms[node.output[0]] = result

    def compute(self, node: onnx.NodeProto) -> None:
        """A node of constants, by ONNX's reference evaluator."""
        feeds = {n: a.array for n in node.input if isinstance(a := self.terms.get(n), Const)}
        value_info = [onnx.helper.make_value_info(n, onnx.TypeProto()) for n in feeds]
        outputs = [onnx.helper.make_value_info(n, onnx.TypeProto()) for n in node.output if n]
        graph = onnx.helper.make_graph([node], "constant", value_info, outputs)
        model = onnx.helper.make_model(graph, opset_imports=self.opset_imports)
        results = ReferenceEvaluator(model).run(None, feeds)
        for name, value in zip((n for n in node.output if n), results, strict=True):
            self.terms[name] = Const(np.asarray(value))


def ints(term: Term | None) -> list[int] | None:
    if isinstance(term, Const) and term.dtype.kind in "iu":
        return [int(v) for v in term.array.reshape(-1)]
    return None


def number(term: Term | None) -> float | None:
    return term.scalar() if isinstance(term, Const) else None


# ---- shapes ------------------------------------------------------------------------------------------------


def shape_of(attrs: Attributes, x: Term) -> Term:
    start, end = attrs.get("start", 0), attrs.get("end")
    return Const(np.array(x.shape[slice(start, end)], dtype=np.int64))


def size_of(attrs: Attributes, x: Term) -> Term:
    return Const(np.array(int(np.prod(x.shape, dtype=np.int64)), dtype=np.int64))


def reshaped(x: Term, shape: Shape) -> Term | None:
    if int(np.prod(shape, dtype=np.int64)) != int(np.prod(x.shape, dtype=np.int64)):
        return None
    if x.shape == shape:
        return x
    if isinstance(x, Data):
        return Data(x.source, shape, x.dtype, x.through)
    if isinstance(x, Stat | Normalised):
        return x.__class__(**{**vars(x), "shape": shape})
    return None


def reshape(attrs: Attributes, x: Term, target: Term | None) -> Term | None:
    shape = ints(target)
    if shape is None:
        return None
    if not attrs.get("allowzero", 0):
        if any(d == 0 and i >= len(x.shape) for i, d in enumerate(shape)):
            return None
        shape = [x.shape[i] if d == 0 else d for i, d in enumerate(shape)]
    if shape.count(-1) == 1:
        known = int(np.prod([d for d in shape if d != -1], dtype=np.int64))
        total = int(np.prod(x.shape, dtype=np.int64))
        if known == 0 or total % known:
            return None
        shape[shape.index(-1)] = total // known
    return reshaped(x, tuple(shape))


def flatten(attrs: Attributes, x: Term) -> Term | None:
    axis = attrs.get("axis", 1)
    axis = axis + len(x.shape) if axis < 0 else axis
    sizes = [int(np.prod(part, dtype=np.int64)) for part in (x.shape[:axis], x.shape[axis:])]
    return reshaped(x, tuple(sizes))


def identity(attrs: Attributes, x: Term) -> Term:
    return x


def cast(attrs: Attributes, x: Term) -> Term | None:
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(attrs["to"]))
    if isinstance(x, Data | Normalised):
        return x.cast(dtype)
    return x if x.dtype == dtype else None


# ---- arithmetic --------------------------------------------------------------------------------------------


def square(x: Term) -> Term | None:
    if isinstance(x, Data | Centred):
        return Square(x, x.dtype)
    if isinstance(x, Stat) and x.step == "mean":
        return Stat("mean squared", x.kind, x.data, x.axes, x.shape, x.dtype)
    return None


def power(attrs: Attributes, x: Term, exponent: Term | None) -> Term | None:
    value = number(exponent)
    if value == 2:
        return square(x)
    if value == 0.5:
        return root(attrs, x)
    return reciprocal(attrs, root(attrs, x)) if value == -0.5 else None


def reduce_mean(attrs: Attributes, x: Term, axes_term: Term | None = None) -> Term | None:
    axes = ints(axes_term) if axes_term is not None else attrs.get("axes")
    rank = len(x.shape)
    if not axes or any(not -rank <= a < rank for a in axes):
        return None
    over = tuple(sorted(a % rank for a in axes))
    keep = attrs.get("keepdims", 1)
    shape = tuple(1 if a in over else d for a, d in enumerate(x.shape) if keep or a not in over)
    if isinstance(x, Data):
        return Stat("mean", "layer", x, over, shape, x.dtype)
    if isinstance(x, Square) and isinstance(x.of, Data):
        return Stat("second", "rms", x.of, over, shape, x.dtype)
    if isinstance(x, Square) and isinstance(x.of, Centred) and x.of.axes == over:
        return Stat("second", "layer", x.of.data, over, shape, x.dtype)
    return None


def subtract(attrs: Attributes, a: Term, b: Term) -> Term | None:
    if not isinstance(b, Stat):
        return None
    if isinstance(a, Data) and b.step == "mean" and b.data == a and b.is_kept():
        return Centred(a, b.axes)
    variance = isinstance(a, Stat) and (a.step, a.kind, b.step) == ("second", "rms", "mean squared")
    if variance and isinstance(a, Stat) and a.eps is None and a.same_rows(b.data, b.axes) and a.shape == b.shape:
        return Stat("second", "layer", a.data, a.axes, a.shape, a.dtype)
    return None


def add(attrs: Attributes, a: Term, b: Term) -> Term | None:
    if isinstance(a, Const):
        a, b = b, a
    eps = number(b)
    if isinstance(a, Stat) and eps is not None and a.eps is None and eps >= 0 and len(b.shape) <= len(a.shape):
        if a.step == "second":
            return Stat("second", a.kind, a.data, a.axes, a.shape, a.dtype, eps)
        if a.step == "root":
            return Stat("root", a.kind, a.data, a.axes, a.shape, a.dtype, eps, "outside")
    return affine(a, b, "bias")


def root(attrs: Attributes, x: Term | None) -> Term | None:
    if isinstance(x, Stat) and x.step == "second":
        return Stat("root", x.kind, x.data, x.axes, x.shape, x.dtype, x.eps)
    return None


def reciprocal(attrs: Attributes, x: Term | None) -> Term | None:
    if isinstance(x, Stat) and x.step == "root":
        return Stat("inverse", x.kind, x.data, x.axes, x.shape, x.dtype, x.eps, x.eps_mode)
    return None


def divide(attrs: Attributes, a: Term, b: Term) -> Term | None:
    if number(a) == 1:
        return reciprocal(attrs, b)
    return normalised(a, b, "root")


def multiply(attrs: Attributes, a: Term, b: Term) -> Term | None:
    if a == b:
        return square(a)
    return normalised(a, b, "inverse") or normalised(b, a, "inverse") or affine(a, b, "scale")


def normalised(a: Term, b: Term, step: str) -> Term | None:
    """x, or x less its mean, over the root of its own second moment."""
    if not (isinstance(b, Stat) and b.step == step and b.is_kept()):
        return None
    data = a.data if isinstance(a, Centred) else a
    kind = "layer" if isinstance(a, Centred) else "rms"
    if not isinstance(data, Data) or b.kind != kind or b.data != data:
        return None
    if isinstance(a, Centred) and a.axes != b.axes:
        return None
    eps = 0.0 if b.eps is None else b.eps
    return Normalised(kind, data, b.axes, eps, b.eps_mode, data.shape, data.dtype, (data.dtype,))


def affine(a: Term, b: Term, role: str) -> Term | None:
    """h times a scale, or plus a bias, that broadcasts to it."""
    if isinstance(b, Normalised):
        a, b = b, a
    if isinstance(b, Const):
        b = Data(b, b.shape, b.dtype)
    if not isinstance(a, Normalised) or a.done or not isinstance(b, Data):
        return None
    if a.bias is not None or (role == "scale" and a.scale is not None):
        return None
    try:
        if np.broadcast_shapes(a.shape, b.shape) != a.shape:
            return None
    except ValueError:
        return None
    dtype = a.dtype if holds(a.dtype, b.dtype) else b.dtype
    return Normalised(**{**vars(a), role: (b, a.shape), "dtype": dtype})


RULES: dict[str, Callable[..., Term | None]] = {
    "Shape": shape_of,
    "Size": size_of,
    "Reshape": reshape,
    "Flatten": flatten,
    "Identity": identity,
    "Cast": cast,
    "Pow": power,
    "Mul": multiply,
    "ReduceMean": reduce_mean,
    "Sub": subtract,
    "Add": add,
    "Sqrt": root,
    "Reciprocal": reciprocal,
    "Div": divide,
}
