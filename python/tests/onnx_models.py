"""Models of one norm: the operator itself, and its function body."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx.backend.test.case.node import function_testcase_helper
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_type_proto, make_value_info

OPSETS = {"LayerNormalization": 17, "RMSNormalization": 23, "GroupNormalization": 21}


def types_of(arrays: list[Any]) -> list[onnx.TypeProto]:
    return [make_tensor_type_proto(onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for a in arrays]


def model_of(
    nodes: list[onnx.NodeProto], names: list[str], arrays: list[Any], outputs: list[str], **opsets: int
) -> Any:
    """A model over these nodes; opsets by domain, `main` for the default one."""
    inputs = [make_value_info(n, t) for n, t in zip(names, types_of(arrays), strict=True)]
    results = [make_value_info(n, onnx.TypeProto()) for n in outputs]
    imports = [make_opsetid("" if d == "main" else d.replace("_", "."), v) for d, v in opsets.items()]
    return make_model(make_graph(nodes, "norm", inputs, results), opset_imports=imports)


def direct(
    op: str, arrays: list[Any], outputs: int = 1, opset: int | None = None, domain: str = "", **attrs: Any
) -> Any:
    """One node; None among the arrays leaves that input out."""
    names = [f"x{i}" if a is not None else "" for i, a in enumerate(arrays)]
    results = [f"y{i}" for i in range(outputs)]
    node = make_node(op, names, results, domain=domain, **attrs)
    opsets = {"main": opset or OPSETS.get(op, 22)} | ({domain.replace(".", "_"): 1} if domain else {})
    given = [a for a in arrays if a is not None]
    return model_of([node], [n for n in names if n], given, results, **opsets)


def expanded(op: str, arrays: list[Any], outputs: int = 1, opset: int | None = None, **attrs: Any) -> list[Any]:
    """The function bodies of one node, one model for each opset that has its own."""
    names = [f"x{i}" for i in range(len(arrays))]
    results = [f"y{i}" for i in range(outputs)]
    node = make_node(op, names, results, **attrs)
    imports = [make_opsetid("", opset or OPSETS[op])]
    bodies, _ = function_testcase_helper(node, types_of(arrays), "test", imports)
    models = []
    for nodes, opsets in bodies:
        if not nodes:  # the standard has no body for this stash_type
            continue
        assert all(n.op_type != op for n in nodes)
        models.append(model_of(nodes, names, arrays, results, main=opsets[0].version if opsets else imports[0].version))
    return models


def run(model: Any, arrays: list[Any]) -> list[Any]:
    from truenorm.onnx import run_model

    return [np.asarray(v) for v in run_model(model, [a for a in arrays if a is not None])]
