"""Errors are one line and exit status 2; files are whole or untouched; pipes and terminals differ in looks only."""

from __future__ import annotations

import json
import os
import pty
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tools_files import gains, llama_like, write_gguf, write_safetensors

from truenorm.tools.app import main


def fails(capsys: pytest.CaptureFixture[str], *arguments: str, says: str) -> None:
    assert main(list(arguments)) == 2
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == "" and len(lines) == 1
    assert lines[0].startswith("truenorm: ") and says in lines[0]


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    fails(capsys, says="Missing command")
    fails(capsys, "nothing", says="nothing")
    fails(capsys, "inspect", says="FILE|DIR")
    fails(capsys, "inspect", "a", "--what", says="--what")
    fails(capsys, "compare", "truenorm", says="Missing argument")
    fails(capsys, "compare", "truenorm", "torch", "--kind", "batch", says="batch")
    fails(capsys, "compare", "truenorm", "torch", "--eps", "-1", says="eps")


def test_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fails(capsys, "inspect", str(tmp_path / "no.safetensors"), says="no such file")
    fails(capsys, "inspect", str(tmp_path), says="no safetensors or GGUF file")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1.safetensors"}}')
    fails(capsys, "inspect", str(tmp_path), says="model-1.safetensors: named by")
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    fails(capsys, "inspect", str(tmp_path), says="no weight_map")
    (tmp_path / "model.safetensors.index.json").write_text("[")
    fails(capsys, "inspect", str(tmp_path), says="index.json: ")


def test_not_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("nothing here")
    fails(capsys, "inspect", str(text), says="neither a safetensors nor a GGUF file")
    empty = tmp_path / "empty.safetensors"
    empty.write_bytes(b"")
    fails(capsys, "inspect", str(empty), says="empty.safetensors: ")
    none = write_safetensors(tmp_path / "none.safetensors", {"mlp.weight": gains(4)})
    fails(capsys, "inspect", str(none), says="no norm layers among 1 tensors")


def test_truncated_safetensors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = write_safetensors(tmp_path / "whole.safetensors", llama_like()).read_bytes()
    for length in (4, 8, 100, len(whole) - 1):
        cut = tmp_path / "cut.safetensors"
        cut.write_bytes(whole[:length])
        fails(capsys, "inspect", str(cut), says="cut.safetensors: ")
    huge = struct.pack("<Q", 1 << 60) + whole[8:]
    (tmp_path / "cut.safetensors").write_bytes(huge)
    fails(capsys, "inspect", str(tmp_path / "cut.safetensors"), says="cut.safetensors: ")


def test_truncated_gguf(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = write_gguf(tmp_path / "whole.gguf", "llama", {"output_norm.weight": gains(64)}).read_bytes()
    for length in (4, 8, 30, 100, len(whole) - 300):
        cut = tmp_path / "cut.gguf"
        cut.write_bytes(whole[:length])
        fails(capsys, "inspect", str(cut), says="cut.gguf: ")


def test_broken_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_safetensors(tmp_path / "m.safetensors", llama_like())
    (tmp_path / "config.json").write_text("{")
    fails(capsys, "inspect", str(path), says="config.json: ")
    (tmp_path / "config.json").write_text("[]")
    fails(capsys, "inspect", str(path), says="not a JSON object")
    (tmp_path / "config.json").write_text('{"model_type": "llama", "rms_norm_eps": "tiny"}')
    assert main(["inspect", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["norms"][0]["eps"] is None


def test_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write_safetensors(tmp_path / "m.safetensors", llama_like(), {"model_type": "llama"}))
    fails(capsys, "inspect", path, "--plot", str(tmp_path / "gains.xyz"), says=".png")
    fails(capsys, "inspect", path, "--plot", str(tmp_path / "no" / "gains.png"), says="gains.png: ")
    folder = tmp_path / "folder.png"
    folder.mkdir()
    fails(capsys, "inspect", path, "--plot", str(folder), says="folder.png: ")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "folder.png", "m.safetensors"]


def test_activations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def compare(*more: str, says: str) -> None:
        fails(capsys, "compare", "truenorm", "numpy32", *more, says=says)

    compare("--x", str(tmp_path / "no.npy"), says="no.npy: ")
    (tmp_path / "text.npy").write_text("x")
    compare("--x", str(tmp_path / "text.npy"), says="text.npy: ")
    np.save(tmp_path / "int.npy", np.ones((2, 4), np.int32))
    compare("--x", str(tmp_path / "int.npy"), says="int32")
    np.save(tmp_path / "none.npy", np.ones((0, 4), np.float32))
    compare("--x", str(tmp_path / "none.npy"), says="no rows")
    np.save(tmp_path / "scalar.npy", np.float32(1))
    compare("--x", str(tmp_path / "scalar.npy"), says="no rows")
    np.save(tmp_path / "w.npy", np.ones(5, np.float32))
    compare("--n", "4", "--weight", str(tmp_path / "w.npy"), says="weight of shape [5]")
    np.savez(tmp_path / "many.npz", a=np.ones(3))
    compare("--x", str(tmp_path / "many.npz"), says="many.npz: ")


def test_implementations(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine_broken.py").write_text(
        "def f(x, w, b, eps): raise KeyError('k')\ndef g(x, w, b, eps): return x[0]\nh = 3\n"
    )
    for name, says in {
        "nobody": "no such implementation",
        "truenorm:slow": "exact or fast",
        "torch:fast": "no options",
        "mine_broken:f": "KeyError",
        "mine_broken:g": "gave float32",
        "mine_broken:h": "no such function",
        "not_a_module:f": "not_a_module",
    }.items():
        fails(capsys, "compare", name, "exact", "--rows", "2", "--n", "8", says=says)
    fails(capsys, "compare", "llama", "exact", "--kind", "layer", says="is an RMSNorm")


def program(*arguments: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "truenorm", *arguments], capture_output=True, timeout=120, **options)  # type: ignore[call-overload,no-any-return]


def test_pipe(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "m.safetensors", llama_like(), {"model_type": "llama", "rms_norm_eps": 1e-6})
    done = program("inspect", str(path))
    assert (done.returncode, done.stderr) == (0, b"") and b"\x1b" not in done.stdout
    assert any(b"input_layernorm" in line and b"1e-06" in line for line in done.stdout.splitlines())
    done = program("inspect", str(tmp_path / "no"))
    assert done.returncode == 2 and done.stdout == b"" and done.stderr.count(b"\n") == 1


def on_terminal(*arguments: str) -> tuple[int, str]:
    """Status and everything written to a terminal 120 columns wide."""
    master, slave = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "120"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "truenorm", *arguments], stdin=slave, stdout=slave, stderr=slave, env=environment
    )
    os.close(slave)
    output = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:
            break
        if not piece:
            break
        output += piece
    os.close(master)
    return process.wait(timeout=120), output.decode()


def test_terminal(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "m.safetensors", llama_like(4), {"model_type": "llama"})
    status, text = on_terminal("inspect", str(path))
    assert status == 0 and "\x1b[" in text and "norms" in text and "input_layernorm" in text
    assert "9/9" in text  # the progress bar
    status, text = on_terminal("inspect", str(tmp_path / "no"))
    assert status == 2 and text.strip().startswith("truenorm: ") and text.count("\n") == 1


def test_missing_packages_are_named(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError(\"No module named 'typer'\", name='typer')")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = program("inspect", "x", env=environment)
    assert done.returncode == 2 and done.stderr == b"truenorm: typer is not installed: pip install 'truenorm[tools]'\n"
