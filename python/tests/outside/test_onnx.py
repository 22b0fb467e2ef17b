"""ONNX's own node tests of the norms, through truenorm.onnx.

The cases are generated in memory by the onnx package (fixed seed, all f32) and compared by its own runner. Direct
cases have one norm operator; `_expanded` ones are the operator's function body, primitive operators that
truenorm.onnx recognises as a norm. LpNormalization with p = 1 is not computed.

The runner's tolerance is rtol 1e-3. RMS and Lp vectors are good to 2 ulp, so those run with rtol 1e-6. The others are
numpy f32 results, less exact than ours near zero.
"""

import re
import unittest
import warnings
from typing import Any

import onnx.backend.test
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt

from truenorm.onnx import TruenormBackend

# Pattern of the names, and how many there are.
FAMILIES = {
    r"^test_layer_normalization_(?!.*_expanded)": 19,
    r"^test_layer_normalization_.*_expanded$": 19,
    r"^test_layer_normalization_.*_expanded_ver18$": 19,
    r"^test_rms_normalization_(?!.*_expanded)": 19,
    r"^test_rms_normalization_.*_expanded$": 19,
    r"^test_group_normalization_(?!.*_expanded)": 2,
    r"^test_group_normalization_.*_expanded$": 2,
    r"^test_instancenorm_": 2,
    r"^test_(l2normalization|lpnormalization)_": 3,
    r"^test_mvn$": 1,
    r"^test_mvn_expanded(_ver18)?$": 2,
}
TIGHT = re.compile(r"^test_(rms_normalization|l2normalization|lpnormalization)_")


class Strict(TruenormBackend):
    """The runner passes a test whose model is refused; here that fails."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> Any:
        try:
            return super().prepare(model, device, **kwargs)
        except BackendIsNotSupposedToImplementIt as error:
            raise AssertionError(str(error)) from error


def family(name: str) -> str | None:
    return next((pattern for pattern in FAMILIES if re.search(pattern, name)), None)


with warnings.catch_warnings():
    # All of ONNX's cases are generated, those that overflow on purpose as well.
    warnings.simplefilter("ignore", RuntimeWarning)
    NAMES = [case.name for case in load_model_tests(kind="node") if family(case.name)]


def node_tests() -> type[unittest.TestCase]:
    """The chosen tests of the runner's own TestCase, without the thousands that it would report as skipped."""
    tight = {name: {"rtol": 1e-6} for name in NAMES if TIGHT.search(name)}
    runner = onnx.backend.test.BackendTest(Strict, __name__, test_kwargs=tight)
    for name in NAMES:
        runner.include(f"^{name}_cpu$")
    every = runner.test_cases["OnnxBackendNodeModelTest"]
    chosen = {f"{name}_cpu": getattr(every, f"{name}_cpu") for name in NAMES}
    return type("OnnxNodeTests", (unittest.TestCase,), chosen)


OnnxNodeTests = node_tests()


def test_every_family_is_there() -> None:
    counts = dict.fromkeys(FAMILIES, 0)
    for name in NAMES:
        pattern = family(name)
        assert pattern is not None
        counts[pattern] += 1
    assert counts == FAMILIES
    assert len(NAMES) == 107
