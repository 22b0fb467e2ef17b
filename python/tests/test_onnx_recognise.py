"""Norms in graphs of primitive operators: what is taken for one, and what is not."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from onnx_models import direct
from onnx_oracle import draw

import truenorm.onnx

N = 16
X = draw((3, N), "f32", 1, 2.0, 0.5)
W, B = draw((N,), "f32", 2), draw((N,), "f32", 3)


def graph(text: str, out: int = 1, x_type: int = 1, **constants: Any) -> onnx.ModelProto:
    """Lines `y = Op(a, b) name=value`; inputs x, z, w, b as far as the lines use them."""
    nodes = []
    for line in text.strip().splitlines():
        target, rest = line.strip().split(" = ")
        op, rest = rest.split("(")
        args, attrs = rest.split(")")
        values = dict(a.split("=") for a in attrs.split())
        names = [a.strip() for a in args.split(",") if a.strip()]
        nodes.append(
            make_node(
                op,
                names,
                [target],
                **{k: [int(i) for i in v.split(",")] if k == "axes" else int(v) for k, v in values.items()},
            )
        )
    used = {n for node in nodes for n in node.input}
    shapes = {"x": ([3, N], x_type), "z": ([3, N], 1), "w": ([N], 1), "b": ([N], 1)}
    inputs = [make_tensor_value_info(k, t, s) for k, (s, t) in shapes.items() if k in used]
    initializers = [onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()]
    outputs = [make_tensor_value_info("y", out, [3, N])]
    return make_model(make_graph(nodes, "g", inputs, outputs, initializers), opset_imports=[make_opsetid("", 17)])


TWO, ONE, EPS = np.float32(2), np.float32(1), np.float32(1e-5)
LAYER_STEPS = """
    m = ReduceMean(x) axes=-1
    d = Sub(x, m)
    p = Pow(d, two)
    v = ReduceMean(p) axes=-1
    e = Add(v, eps)
    s = Sqrt(e)
    h = Div(d, s)
"""
RMS_STEPS = """
    p = Pow(x, two)
    v = ReduceMean(p) axes=-1
    e = Add(v, eps)
    s = Sqrt(e)
"""


def run(model: onnx.ModelProto, *inputs: Any) -> Any:
    return truenorm.onnx.run_model(model, list(inputs))[0]


def same_bits(a: Any, b: Any) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def test_torch_layer_norm() -> None:
    """What torch.onnx emitted for LayerNorm before opset 17."""
    model = graph(LAYER_STEPS + "t = Mul(h, w)\n y = Add(t, b)", two=TWO, eps=EPS)
    want = run(direct("LayerNormalization", [X, W, B]), X, W, B)
    assert same_bits(run(model, X, W, B), want)


@pytest.mark.parametrize(
    "steps",
    [
        "h = Div(x, s)\n y = Mul(w, h)",
        "r = Reciprocal(s)\n h = Mul(x, r)\n y = Mul(h, w)",
        "r = Div(one, s)\n h = Mul(r, x)\n y = Mul(h, w)",
    ],
)
def test_rms_norm_in_its_spellings(steps: str) -> None:
    want = run(direct("RMSNormalization", [X, W]), X, W)
    model = graph(RMS_STEPS + steps, two=TWO, eps=EPS, one=ONE)
    if "one" not in steps:
        del model.graph.initializer[2]
    assert same_bits(run(model, X, W), want)
    power = graph(
        "p = Mul(x, x)\n v = ReduceMean(p) axes=1\n e = Add(eps, v)\n r = Pow(e, half)\n h = Mul(x, r)\n y = Mul(h, w)",
        half=np.float32(-0.5),
        eps=EPS,
    )
    assert same_bits(run(power, X, W), want)


def test_weights_may_be_initializers() -> None:
    model = graph(RMS_STEPS + "h = Div(x, s)\n y = Mul(h, g)", two=TWO, eps=EPS, g=W)
    assert same_bits(run(model, X), run(direct("RMSNormalization", [X, W]), X, W))


def test_llama_cast_points() -> None:
    """f16 x, f32 inside, h cast to f16, times an f16 weight: before_scale."""
    x, w = X.astype(np.float16), W.astype(np.float16)
    steps = "x32 = Cast(x) to=1" + RMS_STEPS.replace("Pow(x", "Pow(x32")
    model = graph(steps + "h = Div(x32, s)\n c = Cast(h) to=10\n y = Mul(c, g)", 10, 10, two=TWO, eps=EPS, g=w)
    h = truenorm.norm(x, kind="rms", eps=float(EPS))
    assert same_bits(run(model, x), h * w)


def test_gemma_cast_points() -> None:
    """f16 x, everything in f32, one cast at the end: once."""
    x = X.astype(np.float16)
    steps = "x32 = Cast(x) to=1" + RMS_STEPS.replace("Pow(x", "Pow(x32")
    model = graph(steps + "h = Div(x32, s)\n p2 = Mul(h, w)\n y = Cast(p2) to=10", 10, 10, two=TWO, eps=EPS)
    got = run(model, x, W)
    assert same_bits(got, truenorm.norm(x, W, kind="rms", eps=float(EPS), out_dtype=np.float16))


def test_t5_cast_points() -> None:
    """f32 x, h cast to a bf16 weight's dtype."""
    w = W.astype(ml_dtypes.bfloat16)
    model = graph(RMS_STEPS + "h = Div(x, s)\n c = Cast(h) to=16\n y = Mul(c, g)", 16, 1, two=TWO, eps=EPS, g=w)
    got = run(model, X)
    h = truenorm.norm(X, kind="rms", eps=float(EPS), out_dtype=ml_dtypes.bfloat16)
    want = (h.astype(np.float32) * w.astype(np.float32)).astype(ml_dtypes.bfloat16)
    assert same_bits(got, want)


def test_no_scale_no_eps() -> None:
    """Without an eps, a zero row is 0 (the graph's own 0/0 would be NaN)."""
    x = X.copy()
    x[1] = 0
    model = graph("p = Pow(x, two)\n v = ReduceMean(p) axes=-1\n s = Sqrt(v)\n y = Div(x, s)", two=TWO)
    got = run(model, x)
    assert not got[1].any()
    assert same_bits(got, truenorm.norm(x, kind="rms", eps=0.0))


def test_inner_axis() -> None:
    """Channels first: the reduced axis is not the last one."""
    model = graph(
        "p = Pow(x, two)\n v = ReduceMean(p) axes=0\n e = Add(v, eps)\n s = Sqrt(e)\n y = Div(x, s)", two=TWO, eps=EPS
    )
    want = truenorm.norm(np.ascontiguousarray(X.T), kind="rms", eps=float(EPS)).T
    assert same_bits(run(model, X), np.ascontiguousarray(want)) or np.array_equal(run(model, X), want)


NOT_A_NORM = {
    "x less the mean of z": ("m = ReduceMean(z) axes=-1\n y = Sub(x, m)", "Sub"),
    "x over the root of z": (RMS_STEPS.replace("(x, two)", "(z, two)") + "y = Div(x, s)", "Div"),
    "variance less mean^2": (
        LAYER_STEPS.replace("e = Add(v, eps)", "q = Mul(m, m)\n r = Sub(v, q)\n e = Add(r, eps)"),
        "Sub",
    ),
    "another operator": ("y = Relu(x)", "Relu"),
    "mean of another input": (
        "z = Add(x, w)\n m = ReduceMean(z) axes=-1\n y = Sub(x, m)",
        "Add",
    ),
    "rms of x under x - mean": (
        "m = ReduceMean(x) axes=-1\n d = Sub(x, m)" + RMS_STEPS + "y = Div(d, s)",
        "Div",
    ),
    "deviation of x under x": (LAYER_STEPS.replace("h = Div(d, s)", "y = Div(x, s)"), "Div"),
    "other axes": (
        LAYER_STEPS.replace("v = ReduceMean(p) axes=-1", "v = ReduceMean(p) axes=0") + "y = Identity(h)",
        "ReduceMean",
    ),
    "eps twice": (RMS_STEPS.replace("s = Sqrt(e)", "f = Add(e, eps)\n s = Sqrt(f)") + "y = Div(x, s)", "Add"),
    "third power": (RMS_STEPS.replace("two", "eps") + "y = Div(x, s)", "Pow"),
    "E[x]^2 - E[x^2]": (
        "p = Mul(x, x)\n v = ReduceMean(p) axes=-1\n m = ReduceMean(x) axes=-1\n q = Mul(m, m)\n y = Sub(q, v)",
        "Sub",
    ),
    "scale after bias": (LAYER_STEPS + "t = Add(h, b)\n y = Mul(t, w)", "Mul"),
    "only a statistic's step": ("p = Mul(x, x)\n y = ReduceMean(p) axes=-1", "step of a norm"),
    "nothing": ("y = Identity(x)", "output y"),
    "kept axis lost": (
        "p = Pow(x, two)\n v = ReduceMean(p) axes=-1 keepdims=0\n e = Add(v, eps)\n s = Sqrt(e)\n y = Div(x, s)",
        "Div",
    ),
}


@pytest.mark.parametrize("name", NOT_A_NORM)
def test_not_a_norm(name: str) -> None:
    text, culprit = NOT_A_NORM[name]
    model = graph(text, two=TWO, eps=EPS)
    with pytest.raises(BackendIsNotSupposedToImplementIt, match=culprit):
        rep = truenorm.onnx.prepare(model)
        rep.run([{"x": X, "z": X, "w": W, "b": B}[i.name] for i in model.graph.input])


def test_names_and_order_do_not_matter() -> None:
    model = graph(RMS_STEPS + "h = Div(x, s)\n y = Mul(h, w)", two=TWO, eps=EPS)
    for node in model.graph.node:
        node.name = "gelu"
        for names in (node.input, node.output):
            for i, n in enumerate(list(names)):
                names[i] = n if n in ("x", "w", "y", "two", "eps") else f"softmax_{n}"
    assert same_bits(run(model, X, W), run(direct("RMSNormalization", [X, W]), X, W))


def test_shapes_may_be_unknown_until_the_run() -> None:
    model = graph(RMS_STEPS + "h = Div(x, s)\n y = Mul(h, w)", two=TWO, eps=EPS)
    del model.graph.input[0].type.tensor_type.shape.dim[0]
    model.graph.input[0].type.tensor_type.shape.dim.insert(0, onnx.TensorShapeProto.Dimension(dim_param="rows"))
    rep = truenorm.onnx.prepare(model)
    assert rep.run([X[:1], W])[0].shape == (1, N) and rep.run([X, W])[0].shape == (3, N)
