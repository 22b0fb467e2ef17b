"""Keras's own normalization tests, which its wheel ships, on the torch backend with our rms_norm and layer_norm.

They run in a process of their own: a plug-in replaces the two functions of torch.nn.functional that Keras calls, counts
the calls, and writes the counts down at the end.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

PLUGIN = """
import json, os
import torch
import truenorm.torch as tn

counts = {"rms_norm": 0, "layer_norm": 0}

def counted(name):
    function = getattr(tn, name)
    def call(*args, **kwargs):
        counts[name] += 1
        return function(*args, **kwargs)
    return call

for name in counts:
    setattr(torch.nn.functional, name, counted(name))

def pytest_sessionfinish(session, exitstatus):
    with open(os.environ["TRUENORM_COUNTS"], "w") as file:
        json.dump(counts, file)
"""

SUITES = {
    "layers": (
        [f"layers/normalization/{kind}_normalization_test.py" for kind in ("rms", "layer", "group", "unit")],
        None,
        {"passed": 26, "rms_norm": 10, "layer_norm": 20},
    ),
    "ops": (
        ["ops/nn_test.py"],
        "rms_normalization or layer_normalization",
        {"passed": 14, "rms_norm": 6, "layer_norm": 5},
    ),
}


@pytest.mark.parametrize("suite", SUITES)
def test_keras(suite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.find_spec("keras")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("keras is not installed")
    source = Path(spec.submodule_search_locations[0]) / "src"
    files, chosen, least = SUITES[suite]
    (tmp_path / "truenorm_plugin.py").write_text(PLUGIN)
    counts = tmp_path / "counts.json"
    environment = os.environ | {
        "KERAS_BACKEND": "torch",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
        "TRUENORM_COUNTS": str(counts),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "truenorm_plugin", "-p", "no:cacheprovider"]
    command += ["-c", os.devnull, "--rootdir", str(tmp_path), *(str(source / file) for file in files)]
    command += ["-k", chosen] if chosen else []
    run = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    found = re.search(r"(\d+) passed", run.stdout)
    result = json.loads(counts.read_text()) | {"passed": int(found[1]) if found else 0}
    with capsys.disabled():
        print(f"\nKeras, {suite}: {result['passed']} passed; calls of ours: {result}")
    assert all(result[key] >= number for key, number in least.items()), result
