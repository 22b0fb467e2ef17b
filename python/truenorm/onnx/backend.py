"""ONNX backend: models that are one normalization, run by truenorm's kernels.

    rep = truenorm.onnx.prepare(onnx.load("norm.onnx"))
    (y,) = rep.run([x, scale])

Two kinds of graph are taken: one norm operator (nodes.py), or primitive
operators that together are one norm (recognise.py). Anything else raises BackendIsNotSupposedToImplementIt, naming the
operator. ONNX's test runner skips such tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep, namedtupledict
from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt

from . import nodes
from .kernels import FLOATS, Array, Norm, Unsupported, normalise, normalise_groups, statistics
from .recognise import Interpreter
from .terms import Const, Data, Normalised, Stat, Term

MICROSOFT = "com.microsoft"
OPERATORS = {
    ("", "LayerNormalization"): nodes.layer_normalization,
    ("", "RMSNormalization"): nodes.rms_normalization,
    ("", "GroupNormalization"): nodes.group_normalization,
    ("", "InstanceNormalization"): nodes.instance_normalization,
    ("", "LpNormalization"): nodes.lp_normalization,
    ("", "MeanVarianceNormalization"): nodes.mean_variance_normalization,
    # ONNX Runtime registers this one in the default domain; exporters use both.
    ("", "SimplifiedLayerNormalization"): nodes.simplified_layer_normalization,
    (MICROSOFT, "SimplifiedLayerNormalization"): nodes.simplified_layer_normalization,
    (MICROSOFT, "SkipLayerNormalization"): nodes.skip_layer_normalization,
    (MICROSOFT, "SkipSimplifiedLayerNormalization"): nodes.skip_simplified_layer_normalization,
}


def domain_of(node: onnx.NodeProto) -> str:
    return "" if node.domain == "ai.onnx" else node.domain


def is_norm(node: onnx.NodeProto) -> bool:
    return (domain_of(node), node.op_type) in OPERATORS


def run_norm_node(node: onnx.NodeProto, version: int, values: Mapping[str, Array]) -> list[Array]:
    """The outputs of one norm operator; those that the node leaves out are not returned."""
    inputs = [values[name] if name else None for name in node.input]
    for value in inputs:
        if value is not None and value.dtype not in FLOATS:
            raise Unsupported(f"{node.op_type} of {value.dtype}")
    operator = OPERATORS[domain_of(node), node.op_type]
    results = operator(inputs, nodes.attributes(node), version)
    if len(node.output) > len(results):
        raise Unsupported(f"{node.op_type} with {len(node.output)} outputs")
    return [r for r, name in zip(results, node.output, strict=False) if name and r is not None]


class NodeRep(BackendRep):
    """A graph whose only operator is a norm."""

    def __init__(self, node: onnx.NodeProto, version: int, graph: onnx.GraphProto) -> None:
        self.node, self.version, self.graph = node, version, graph
        self.constants = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
        produced = [name for name in node.output if name]
        if [o.name for o in graph.output] != produced[: len(graph.output)]:
            raise Unsupported(f"graph outputs that are not the outputs of {node.op_type}, in order")

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        values = {**self.constants, **feeds(self.graph, inputs, self.constants)}
        with refused():
            results = run_norm_node(self.node, self.version, values)
        return named(self.graph, results[: len(self.graph.output)])


class GraphRep(BackendRep):
    """A graph of primitive operators; recognised once for each signature of the inputs."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model, self.graph = model, model.graph
        self.constants = {t.name for t in self.graph.initializer}
        self.known: dict[tuple[Any, ...], dict[str, Term]] = {}
        signature = declared(self.graph, self.constants)
        if signature is not None:
            self.terms(signature)

    def terms(self, signature: dict[str, tuple[tuple[int, ...], np.dtype[Any]]]) -> dict[str, Term]:
        key = tuple(signature.items())
        if key not in self.known:
            terms = Interpreter(self.model, signature).terms
            self.known[key] = {o.name: terms[o.name] for o in self.graph.output}
            for name, term in self.known[key].items():
                if not isinstance(term, Normalised | Stat):
                    raise Unsupported(f"output {name} is not a norm of an input")
        return self.known[key]

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        values = feeds(self.graph, inputs, self.constants)
        with refused():
            terms = self.terms({n: (v.shape, v.dtype) for n, v in values.items()})
            return named(self.graph, [lower(terms[o.name], values) for o in self.graph.output])


def lower(term: Term, values: Mapping[str, Array]) -> Array:
    """The value of a recognised term."""
    if isinstance(term, Normalised):
        return lower_norm(term, values)
    if not isinstance(term, Stat) or term.step not in ("mean", "inverse"):
        raise Unsupported("an output that is a step of a norm, but neither result, mean nor 1/root")
    x = source(term.data, values)
    norm = Norm(term.kind, term.axes, term.eps or 0.0, term.data.dtype, (), term.eps_mode)
    mean, inverse = statistics(norm, x)
    return (mean if term.step == "mean" else inverse).reshape(term.shape).astype(term.dtype)


def lower_norm(term: Normalised, values: Mapping[str, Array]) -> Array:
    x = source(term.data, values)
    norm = Norm(term.kind, term.axes, term.eps, term.data.dtype, term.through, term.eps_mode)
    pairs = [p for p in (term.scale, term.bias) if p is not None]
    scale, bias = (None if p is None else values_of(p[0], values) for p in (term.scale, term.bias))
    view = pairs[0][1] if pairs else term.shape
    if any(shape != view for _, shape in pairs):
        raise Unsupported("a scale and a bias applied in different shapes")
    # GroupNorm: x [N, G, L] over the last axis, scale and bias over the channels of [N, C, ...].
    channels = len(view) >= 2 and all(
        p.size == view[1] and len(view) - p.ndim <= 1 for p in (scale, bias) if p is not None
    )
    if pairs and view != x.shape and x.ndim == 3 and norm.axes == (2,) and view[0] == x.shape[0] and channels:
        flat = [None if p is None else p.reshape(-1) for p in (scale, bias)]
        return normalise_groups(norm, x.reshape(view), x.shape[1], flat[0], flat[1], term.dtype).reshape(term.shape)
    if view != x.shape:
        trailing = norm.axes == tuple(range(norm.axes[0], x.ndim))
        if not trailing:
            raise Unsupported("a scale applied in another shape than the norm's")
        scale, bias = (None if p is None else np.broadcast_to(p, view).reshape(x.shape) for p in (scale, bias))
    return normalise(norm, x, scale, bias, term.dtype).reshape(term.shape)


def source(data: Data, values: Mapping[str, Array]) -> Array:
    """The array of a Data, reshaped but not cast: stage one casts."""
    array = data.source.array if isinstance(data.source, Const) else values[data.source]
    return array.reshape(data.shape)


def values_of(data: Data, values: Mapping[str, Array]) -> Array:
    array = source(data, values)
    for dtype in data.through:
        array = array.astype(dtype)
    return array


# ---- inputs and outputs ------------------------------------------------------------------------------------


class refused:
    """Unsupported, as ONNX's test runner wants it."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Unsupported):
            raise BackendIsNotSupposedToImplementIt(f"truenorm.onnx does not run this model: {error}") from error


def feeds(graph: onnx.GraphProto, inputs: Any, constants: Any) -> dict[str, Array]:
    """Inputs by name. A list gives them in the graph's order, initializers left out."""
    names = [i.name for i in graph.input if i.name not in constants]
    if isinstance(inputs, Mapping):
        missing = [n for n in names if n not in inputs]
        if missing:
            raise ValueError(f"no value for the input {missing[0]}")
        return {name: np.asarray(value) for name, value in inputs.items()}
    if isinstance(inputs, np.ndarray):
        inputs = [inputs]
    if len(inputs) != len(names):
        raise ValueError(f"{len(inputs)} inputs given, the model has {len(names)}")
    return {name: np.asarray(value) for name, value in zip(names, inputs, strict=True)}


def named(graph: onnx.GraphProto, results: Sequence[Array]) -> tuple[Any, ...]:
    return namedtupledict("Outputs", [o.name for o in graph.output])(*results)


def declared(graph: onnx.GraphProto, constants: Any) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]] | None:
    """Shapes and dtypes that the graph states for its inputs; None if one is not stated in full."""
    result = {}
    for value in graph.input:
        tensor = value.type.tensor_type
        if value.name in constants:
            continue
        if not tensor.HasField("shape") or any(not d.HasField("dim_value") for d in tensor.shape.dim):
            return None
        shape = tuple(d.dim_value for d in tensor.shape.dim)
        result[value.name] = (shape, nodes.float_dtype(tensor.elem_type))
    return result


class TruenormBackend(Backend):
    """onnx.backend.base.Backend over the kernels of truenorm; CPU only."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device.split(":")[0] == "CPU"

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        try:
            cls.prepare(model, device)
        except BackendIsNotSupposedToImplementIt:
            return False
        return cls.supports_device(device)

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> BackendRep:
        """Raises BackendIsNotSupposedToImplementIt, naming the operator, if the model is not one norm."""
        if not cls.supports_device(device):
            raise BackendIsNotSupposedToImplementIt(f"truenorm.onnx runs on the CPU, not on {device}")
        versions = {o.domain if o.domain != "ai.onnx" else "": o.version for o in model.opset_import}
        norms = [n for n in model.graph.node if is_norm(n)]
        with refused():
            if not norms:
                return GraphRep(model)
            others = [n.op_type for n in model.graph.node if not is_norm(n)]
            if others or len(norms) > 1:
                beside = others[0] if others else norms[1].op_type
                raise Unsupported(f"operator {beside} beside {norms[0].op_type}; one norm is one model here")
            return NodeRep(norms[0], versions.get(domain_of(norms[0]), 1), model.graph)
        raise AssertionError("unreachable")

    @classmethod
    def run_node(
        cls, node: onnx.NodeProto, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """One norm operator on arrays, in the order of the node's non-empty inputs."""
        with refused():
            if not is_norm(node):
                raise Unsupported(f"operator {node.op_type}")
            latest = onnx.defs.onnx_opset_version()
            version = int(kwargs.get("opset_version", 1 if node.domain == MICROSOFT else latest))
            names = [name for name in node.input if name]
            arrays = [np.asarray(a) for a in inputs]
            if len(arrays) != len(names):
                raise ValueError(f"{len(arrays)} inputs given, the node has {len(names)}")
            results = run_norm_node(node, version, dict(zip(names, arrays, strict=True)))
            return namedtupledict("Outputs", [o for o in node.output if o])(*results)
        raise AssertionError("unreachable")


prepare = TruenormBackend.prepare
run_model = TruenormBackend.run_model
run_node = TruenormBackend.run_node
supports_device = TruenormBackend.supports_device
is_compatible = TruenormBackend.is_compatible
