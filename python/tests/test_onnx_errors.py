"""What the ONNX backend refuses, and that it says which operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt
from onnx.helper import make_node
from onnx_models import direct, run

import truenorm.onnx

X = np.arange(12, dtype=np.float32).reshape(3, 4)
W = np.ones(4, np.float32)


def refused(match: str) -> Any:
    return pytest.raises(BackendIsNotSupposedToImplementIt, match=match)


def test_attributes() -> None:
    with refused("p = 1"):
        run(direct("LpNormalization", [X], p=1), [X])
    with refused("axis 2"):
        run(direct("RMSNormalization", [X, W], axis=2), [X, W])
    with refused("INT64"):
        run(direct("LayerNormalization", [X, W, W], stash_type=7), [X, W, W])
    with refused("3 groups"):
        image = np.ones((1, 4, 2), np.float32)
        run(direct("GroupNormalization", [image, W, W], num_groups=3), [image, W, W])


def test_shapes_and_dtypes() -> None:
    with refused("scale or bias of shape"):
        run(direct("RMSNormalization", [X, np.ones(3, np.float32)]), [X, np.ones(3, np.float32)])
    with refused("int32"):
        run(direct("LpNormalization", [X.astype(np.int32)]), [X.astype(np.int32)])
    with refused("skip of shape"):
        skip = np.ones((2, 4), np.float32)
        run(direct("SkipLayerNormalization", [X, skip, W], domain="com.microsoft"), [X, skip, W])
    with refused("InstanceNormalization"):
        run(direct("InstanceNormalization", [X, W, W]), [X, W, W])


def test_a_format_on_the_way_that_h_cannot_have() -> None:
    x, w = X.astype(np.float16), W.astype(np.float16)
    with refused("bfloat16"):
        run(direct("LayerNormalization", [x, w, w], stash_type=16), [x, w, w])


def test_models() -> None:
    model = direct("RMSNormalization", [X, W])
    model.graph.node.append(make_node("Relu", ["y0"], ["z"]))
    with refused("Relu beside RMSNormalization"):
        truenorm.onnx.prepare(model)
    assert not truenorm.onnx.is_compatible(model)
    assert truenorm.onnx.is_compatible(direct("RMSNormalization", [X, W]))
    with refused("CUDA"):
        truenorm.onnx.prepare(direct("RMSNormalization", [X, W]), "CUDA")
    assert truenorm.onnx.supports_device("CPU") and not truenorm.onnx.supports_device("CUDA:0")


def test_inputs() -> None:
    rep = truenorm.onnx.prepare(direct("RMSNormalization", [X, W]))
    with pytest.raises(ValueError, match="1 inputs given, the model has 2"):
        rep.run([X])
    with pytest.raises(ValueError, match="no value for the input x1"):
        rep.run({"x0": X})
    by_name = rep.run({"x1": W, "x0": X})
    assert by_name.y0.tobytes() == rep.run([X, W])[0].tobytes()


def test_run_node() -> None:
    node = make_node("RMSNormalization", ["x", "w"], ["y"], epsilon=1e-3)
    (y,) = truenorm.onnx.run_node(node, [X, W])
    assert y.tobytes() == run(direct("RMSNormalization", [X, W], epsilon=1e-3), [X, W])[0].tobytes()
    with refused("Relu"):
        truenorm.onnx.run_node(make_node("Relu", ["x"], ["y"]), [X])
    old = make_node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=2)
    scale = np.ones(2, np.float32)
    image = np.ones((1, 4, 2), np.float32)
    assert truenorm.onnx.run_node(old, [image, scale, scale], opset_version=18)[0].shape == (1, 4, 2)
    with refused("channels"):
        truenorm.onnx.run_node(old, [image, scale, scale])


def test_weights_may_be_initializers() -> None:
    model = direct("RMSNormalization", [X, W])
    want = run(model, [X, W])[0]
    model.graph.initializer.append(onnx.numpy_helper.from_array(W, "x1"))
    assert truenorm.onnx.run_model(model, [X])[0].tobytes() == want.tobytes()
