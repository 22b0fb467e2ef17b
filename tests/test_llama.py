"""examples/llama: gradients, determinism, learning, what is measured and shown."""

import os
import pty
import re
import select

import pytest
from llama_program import LLAMA64, TINY
from safetensors.numpy import load_file

KINDS = ["none", "layer", "rms", "prms:0.3"]

# ---- gradients --------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", KINDS)
@pytest.mark.parametrize("placement", ["pre", "post", "sandwich"])
@pytest.mark.parametrize("qk_norm", ["none", "layer", "rms", "prms:0.5"])
def test_gradients(llama, norm, placement, qk_norm):
    text = llama.ok("gradcheck", "--norm", norm, "--placement", placement, "--qk-norm", qk_norm, program=LLAMA64)
    rows = re.findall(r"^(model\S+) +slope (\S+)  off by (\S+) of it$", text, re.M)
    sites = {"pre": 2, "post": 2, "sandwich": 4}[placement]
    per_norm = {"none": 0, "layer": 2}
    qk = 2 * per_norm.get(qk_norm, 1)
    last = per_norm.get(norm, 1) if placement != "post" else 0
    assert len(rows) == 1 + 2 * (7 + sites * per_norm.get(norm, 1) + qk) + last
    assert all(float(slope) > 1e-5 and float(off) < 1e-7 for _, slope, off in rows)


def test_gradients_in_float(llama):
    assert "gradients agree" in llama.ok("gradcheck", "--norm", "layer", "--placement", "sandwich", "--qk-norm", "rms")


# ---- training ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", KINDS)
def test_learns(llama, norm):
    llama.train("--norm", norm, "--out", "run", "--valid-every", 50, "--rate", "0.01", steps=150)
    losses = llama.losses("run")
    assert len(losses) == 150
    assert losses[0] > 5 and max(losses[-5:]) < 2.5
    valid = [(m["step"], m["valid"]) for m in llama.metrics("run") if "valid" in m]
    assert [step for step, _ in valid] == [50, 100, 150] and valid[-1][1] < 2.5


@pytest.mark.parametrize("threads", [1, 2])
def test_same_seed_same_bits(llama, threads):
    for run in ("one", "two"):
        llama.train("--out", run, "--threads", threads, "--norm", "layer", "--qk-norm", "rms")
    assert llama.bits("one") == llama.bits("two")
    assert llama.losses("one") == llama.losses("two")
    llama.train("--out", "three", "--threads", threads, "--norm", "layer", "--qk-norm", "rms", "--seed", 2)
    assert llama.losses("three") != llama.losses("one")


def test_metrics(llama):
    llama.train("--out", "run", "--log-every", 5)
    first, *steps, valid, end = llama.metrics("run")
    assert first["parameters"] == 256 * 16 + 2 * (4 * 16 * 16 + 3 * 16 * 24 + 2 * 16) + 16
    assert set(first) == {"parameters", "threads", "openblas", "isa"}
    assert [m["step"] for m in steps] == list(range(1, 13))
    assert all(0 < m["norm_s"] < m["step_s"] and m["gradient"] > 0 for m in steps)
    logged = [m for m in steps if "layer_gradient" in m]
    assert [m["step"] for m in logged] == [1, 5, 10, 12]
    for m in logged:
        assert len(m["layer_gradient"]) == 2 and sum(g * g for g in m["layer_gradient"]) < m["gradient"] ** 2
        assert all(len(m[name]) == 4 for name in ("in_mean", "in_variance", "stream_mean", "stream_variance"))
    # RMSNorm with its initial weights of 1: mean square 1 in every layer, but for eps.
    squares = [v + m * m for m, v in zip(logged[0]["in_mean"], logged[0]["in_variance"], strict=True)]
    assert squares == pytest.approx([1] * 4, abs=1e-3)
    assert set(valid) == {"step", "valid"}
    assert end == {"end": "finished", "step": 12}


def test_no_checkpoints(llama):
    llama.train("--out", "run")
    llama.train("--out", "bare", "--checkpoints", 0)
    assert [p.name for p in (llama.path / "bare").iterdir()] == ["metrics.jsonl"]
    assert llama.losses("bare") == llama.losses("run")
    assert llama.fails("train", "--resume", "bare") == "bare: holds no checkpoint"


def test_divergence_ends_the_run(llama):
    done = llama.run("train", *TINY, "--steps", 40, "--norm", "none", "--rate", "1e30", "--warmup", 0, "--out", "run")
    assert (done.returncode, done.stderr) == (3, "")
    step = int(re.search(r"^diverged in step (\d+): the loss is not finite$", done.stdout, re.M).group(1))
    *_, last, end = llama.metrics("run")
    assert (last["step"], last["loss"], end["end"]) == (step, None, "diverged")
    assert llama.checkpoint("run").name == "checkpoint-0"  # never one of NaN


def test_eval(llama):
    llama.train("--out", "run")
    text = llama.ok("eval", llama.checkpoint("run"), "--text", "text")
    loss, measured, size = re.fullmatch(
        r"loss (\S+) nats per byte, \S+ bits per byte, over (\d+) of (\d+) bytes\n", text
    ).groups()
    (valid,) = (m["valid"] for m in llama.metrics("run") if "valid" in m)
    assert float(loss) == pytest.approx(valid, rel=0.05)  # the same text, other pieces of it
    assert int(size) - 16 * 17 < int(measured) < int(size)


def test_logits(llama):
    llama.train("--out", "run", "--placement", "sandwich", "--norm", "prms:0.5")
    (llama.path / "short").write_bytes(b"norm layer")
    assert llama.ok("logits", llama.checkpoint("run"), "--text", "short", "-o", "out.safetensors") == ""
    (name, logits), *rest = load_file(llama.path / "out.safetensors").items()
    assert (name, logits.shape, rest) == ("logits", (10, 256), [])
    # What follows a byte does not change what it predicts.
    (llama.path / "short").write_bytes(b"norm l")
    llama.ok("logits", llama.checkpoint("run"), "--text", "short", "-o", "out.safetensors")
    assert load_file(llama.path / "out.safetensors")["logits"] == pytest.approx(logits[:6], abs=1e-5)


# ---- output -----------------------------------------------------------------------------------------


def test_lines_in_a_pipe(llama):
    lines = llama.train("--out", "run", "--log-every", 6).splitlines()
    assert len(lines) == 3
    assert all(re.fullmatch(r"step \d+/12  loss \d+\.\d{4}(  valid \d+\.\d{4})?  \d+ tokens/s", line) for line in lines)
    assert "valid" in lines[-1]


def test_bar_on_a_terminal(llama):
    ours, theirs = pty.openpty()
    run = llama.start("train", *TINY, "--steps", 3000, "--out", "run", stdout=theirs, stderr=theirs)
    os.close(theirs)
    text = b""
    while select.select([ours], [], [], 60)[0]:
        try:
            text += os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
    os.close(ours)
    assert run.wait() == 0
    assert re.search(rb"\r\[#*-*\] \d+/3000  loss \d\.\d{4}  \d+ tokens/s", text)
    assert text.endswith(b"\r\x1b[K")  # and gone at the end
    assert b"step " not in text
