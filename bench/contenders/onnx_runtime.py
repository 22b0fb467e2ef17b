"""ONNX Runtime: one fused node in a session, operands and results bound to memory that is there already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper
from torch import Tensor

from contenders.base import Absent, Contender, Factory, python_calls
from problem import Problem

TYPES = {"f32": TensorProto.FLOAT, "bf16": TensorProto.BFLOAT16, "f16": TensorProto.FLOAT16}
MICROSOFT = "com.microsoft"


def _node(p: Problem) -> tuple[onnx.NodeProto, dict[str, Tensor], dict[str, Tensor]]:
    """The node, its inputs and its outputs, in order."""
    kind = p.cell.kind
    inputs: dict[str, Tensor] = {"x": p.x}
    outputs = {"y": p.empty()}
    if kind == "rms":
        inputs["weight"] = p.weight
        node = helper.make_node("SimplifiedLayerNormalization", list(inputs), ["y"], axis=-1, epsilon=p.eps)
    elif kind == "layer":
        assert p.bias is not None
        inputs |= {"weight": p.weight, "bias": p.bias}
        node = helper.make_node("LayerNormalization", list(inputs), ["y"], axis=-1, epsilon=p.eps)
    elif kind == "add_rms":
        assert p.residual is not None
        inputs |= {"residual": p.residual, "weight": p.weight}
        outputs["sum"] = p.empty()
        node = helper.make_node(
            "SkipSimplifiedLayerNormalization", list(inputs), ["y", "", "", "sum"], domain=MICROSOFT, epsilon=p.eps
        )
    elif kind == "gated_after":
        assert p.gate is not None
        inputs |= {"weight": p.weight, "gate": p.gate}
        node = helper.make_node("GatedRMSNorm", list(inputs), ["y"], domain=MICROSOFT, epsilon=p.eps, activation="silu")
    else:
        raise Absent("no such operator")
    return node, inputs, outputs


def _session(p: Problem, threads: int) -> tuple[onnxruntime.InferenceSession, dict[str, Tensor], dict[str, Tensor]]:
    node, inputs, outputs = _node(p)
    element = TYPES[p.cell.dtype]
    graph = helper.make_graph(
        [node],
        "norm",
        [helper.make_tensor_value_info(name, element, list(t.shape)) for name, t in inputs.items()],
        [helper.make_tensor_value_info(name, element, list(t.shape)) for name, t in outputs.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session, inputs, outputs


def ort(p: Problem, threads: int) -> Contender:
    if p.backward:
        raise Absent("no training in this package")
    if not p.x.is_contiguous():
        raise Absent("contiguous tensors only")
    session, inputs, outputs = _session(p, threads)
    element = TYPES[p.cell.dtype]
    binding = session.io_binding()
    for name, tensor in inputs.items():
        binding.bind_input(name, "cpu", 0, element, list(tensor.shape), tensor.data_ptr())
    for name, tensor in outputs.items():
        binding.bind_output(name, "cpu", 0, element, list(tensor.shape), tensor.data_ptr())

    # What InferenceSession.run_with_iobinding does, without its checks.
    run, raw = session._sess.run_with_iobinding, binding._iobinding

    def function() -> Any:
        run(raw, None)

    def results() -> Mapping[str, Any]:
        for tensor in outputs.values():
            tensor.fill_(torch.nan)
        function()
        return outputs

    return Contender(python_calls(function), results, allocates=False, keep=(inputs, session))


FACTORIES: dict[str, Factory] = {"ONNX Runtime": ort}
