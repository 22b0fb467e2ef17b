"""examples/llama: what a kill, Ctrl-C and a full disk leave, and every way to fail."""

import json
import random
import resource
import signal
import subprocess
import time

import pytest
from llama_program import LLAMA, TINY
from safetensors.numpy import load_file, save_file


def wait_for_step(llama, run, step):
    """Until a checkpoint of that step or a later one is there."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (llama.path / run).exists() and llama.steps(run) and llama.steps(run)[-1] >= step:
            return
        time.sleep(0.001)
    raise AssertionError(f"{run} has no checkpoint of step {step}")


# ---- resume -----------------------------------------------------------------------------------------


def killed(llama, *options):
    """A run of 2000 steps, killed after the checkpoint of step 500 and before the end."""
    args = ["train", *TINY, "--steps", 2000, "--save-every", 500, *options, "--out", "run"]
    run = llama.start(*args, stdout=subprocess.DEVNULL)
    wait_for_step(llama, "run", 500)
    run.kill()
    assert run.wait() == -signal.SIGKILL
    assert 500 <= llama.steps("run")[-1] < 2000


def same_runs(llama, run, other):
    assert llama.bits(run) == llama.bits(other)
    assert llama.losses(run) == llama.losses(other)
    assert llama.metrics(run)[-1] == llama.metrics(other)[-1]


def test_kill_and_resume_to_the_bit(llama):
    options = ["--norm", "layer", "--qk-norm", "rms", "--clip", "1"]
    llama.train(*options, "--out", "whole", steps=2000)
    killed(llama, *options)
    llama.ok("train", "--resume", "run")
    same_runs(llama, "run", "whole")
    assert len(llama.losses("run")) == 2000


def test_killed_at_any_moment(llama):
    """With a checkpoint after every step, most kills meet one that is being written."""
    chance = random.Random(2)
    llama.train("--out", "whole", steps=200)
    run = llama.start("train", *TINY, "--steps", 200, "--save-every", 1, "--out", "parts", stdout=subprocess.DEVNULL)
    wait_for_step(llama, "parts", 1)
    met = 0
    for _ in range(12):
        time.sleep(chance.uniform(0, 0.03))
        run.kill()
        run.wait()
        met += (llama.path / "parts/partial-checkpoint").exists()
        last = llama.path / f"parts/checkpoint-{llama.steps('parts')[-1]}"
        assert load_file(last / "model.safetensors") and json.loads((last / "config.json").read_text())
        run = llama.start("train", "--resume", "parts", stdout=subprocess.DEVNULL)
    assert met > 0
    assert run.wait() == 0
    same_runs(llama, "parts", "whole")
    assert not (llama.path / "parts/partial-checkpoint").exists()


def test_half_written_checkpoint_is_ignored(llama):
    llama.train("--out", "whole", steps=2000)
    killed(llama)
    partial = llama.path / "run/partial-checkpoint"
    partial.mkdir(exist_ok=True)
    (partial / "model.safetensors").write_bytes(b"half")
    older = llama.path / "run/checkpoint-7"  # of which a killed run had removed a part
    older.mkdir()
    (older / "config.json").write_text("{}")
    llama.ok("train", "--resume", "run")
    same_runs(llama, "run", "whole")
    assert sorted(p.name for p in (llama.path / "run").iterdir()) == ["checkpoint-2000", "metrics.jsonl"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_writes_a_checkpoint(llama, number):
    llama.train("--out", "whole", steps=3000)
    run = llama.start(
        "train", *TINY, "--steps", 3000, "--out", "run", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert run.stdout.readline().startswith("step 1/3000  loss ")
    run.send_signal(number)
    _, error = run.communicate(timeout=60)
    assert run.returncode == -number
    (step,) = llama.steps("run")
    assert 1 <= step < 3000
    assert error == f"llama: interrupted after step {step}; 'llama train --resume run' goes on\n"
    assert llama.metrics("run")[-1] == {"end": "interrupted", "step": step}
    llama.ok("train", "--resume", "run")
    same_runs(llama, "run", "whole")


def test_moved_and_resumed_from_another_folder(llama):
    llama.train("--out", "whole", steps=2000)
    killed(llama)
    (llama.path / "far").mkdir()
    (llama.path / "run").rename(llama.path / "far/moved")
    done = subprocess.run([LLAMA, "train", "--resume", "moved"], cwd=llama.path / "far", capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    same_runs(llama, "far/moved", "whole")


def test_full_disk_keeps_the_last_checkpoint(llama):
    def limit():  # above the sizes of the model and the metrics, below that of the optimiser's averages
        resource.setrlimit(resource.RLIMIT_FSIZE, (450000, 450000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    options = ["--width", 48, "--hidden", 128, "--log-every", 100]
    llama.train("--out", "whole", *options, steps=2000)
    killed(llama, *options)
    before = llama.steps("run")
    done = llama.run("train", "--resume", "run", preexec_fn=limit)
    assert done.returncode == 2
    assert done.stderr == "llama: run/partial-checkpoint/optimizer.safetensors: File too large\n"
    assert llama.steps("run") == before
    llama.ok("train", "--resume", "run")
    same_runs(llama, "run", "whole")


def test_metrics_that_were_cut(llama):
    llama.train("--out", "run")
    (llama.path / "run/metrics.jsonl").write_text("")
    assert "is shorter than when the checkpoint was written" in llama.fails("train", "--resume", "run")


# ---- errors -----------------------------------------------------------------------------------------

NEW = ["train", *TINY, "--out", "new"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "no command given; see 'llama --help'"),
        (["tarin"], "unknown command 'tarin'; see 'llama --help'"),
        (["--norm"], "unknown option '--norm'; see 'llama --help'"),
        (["train"], "--text is missing: a file to train on"),
        (["train", "--text", "text"], "--out is missing: a folder for metrics and checkpoints"),
        (["train", "--text", "nothing", "--out", "new"], "nothing: No such file or directory"),
        (["train", "--text", ".", "--out", "new"], ": not a regular file"),
        (["train", "--text", "text", "--context", "65536", "--out", "new"], "are too few for a context of 65536"),
        (["train", "--text", "text", "--out", "text"], "text: Not a directory"),
        (["train", "--text", "text", "--out", "no/new"], "no/new: No such file or directory"),
        ([*NEW, "more"], "unexpected argument 'more'"),
        ([*NEW, "--norm", "batch"], "--norm: 'batch' is none of none, layer, rms, prms:P (0 < P <= 1)"),
        ([*NEW, "--norm", "prms:1.5"], "--norm: 'prms:1.5' is none of"),
        ([*NEW, "--norm", "prms:"], "--norm: 'prms:' is none of"),
        ([*NEW, "--qk-norm", "prms:0.5x"], "--qk-norm: 'prms:0.5x' is none of"),
        ([*NEW, "--placement", "middle"], "--placement: 'middle' is none of pre, post, sandwich"),
        ([*NEW, "--steps", "0"], "--steps: 0 is not between 1 and 1000000000"),
        ([*NEW, "--steps", "-1"], "--steps: '-1' is not a whole number"),
        ([*NEW, "--seed", "99999999999999999999999"], "--seed: 99999999999999999999999 is not between 0 and"),
        ([*NEW, "--rate", "fast"], "--rate: 'fast' is not a number"),
        ([*NEW, "--rate", "inf"], "--rate: 'inf' is not a number"),
        ([*NEW, "--decay", "-0.1"], "--decay: -0.1 is less than 0"),
        ([*NEW, "--heads", "3"], "the width is no multiple of the heads"),
        ([*NEW, "--heads", "16"], "width / heads is odd, and rotations need pairs"),
        ([*NEW, "--frobnicate", "1"], "unrecognized option '--frobnicate'"),
        ([*NEW, "--rate"], "option '--rate' requires an argument"),
        (
            ["train", "--resume", "run", "--steps", "20"],
            "--resume goes on with the run's own options; leave out --steps",
        ),
        (["train", "--resume", "nothing"], "nothing: holds no checkpoint"),
        (["train", *TINY, "--out", "run"], "run: holds a run already; go on with it by --resume, or remove it"),
        (["eval"], "no checkpoint given: a folder checkpoint-STEP"),
        (["eval", "run/checkpoint-12"], "--text is missing"),
        (["eval", "run", "--text", "text"], "run/config.json: No such file or directory"),
        (["eval", "run/checkpoint-12", "--text", "nothing"], "nothing: No such file or directory"),
        (["eval", "run/checkpoint-12", "--text", "text", "-o", "x"], "eval writes no file; leave out --output"),
        (["logits", "run/checkpoint-12", "--text", "text"], "no output file given: -o FILE is missing"),
        (["logits", "run/checkpoint-12", "--text", "text", "-o", "x"], "bytes are more than the context of 16"),
        (["logits", "run/checkpoint-12", "--text", "short", "-o", "no/x"], "no/x.partial: No such file or directory"),
        (["gradcheck", "--qk-norm", "yes"], "--qk-norm: 'yes' is none of"),
    ],
)
def test_messages(llama, args, message):
    llama.train("--out", "run")
    (llama.path / "short").write_bytes(b"norm")
    assert message in llama.fails(*args)


def damage(path, change):
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("model.safetensors", lambda p: p.write_bytes(b""), "too short for a safetensors file"),
        ("model.safetensors", lambda p: p.write_bytes(b"x" * 100), "not a safetensors file, or cut off in its header"),
        ("model.safetensors", lambda p: p.write_bytes(b"\2" + bytes(7) + b"[]"), "its header is no JSON object"),
        ("model.safetensors", lambda p: p.write_bytes(p.read_bytes()[:-9]), "does not lie in the file"),
        (
            "model.safetensors",
            lambda p: damage(p, lambda t: t.pop("model.norm.weight")),
            "has no array model.norm.weight",
        ),
        (
            "model.safetensors",
            lambda p: damage(p, lambda t: t.update({"model.norm.weight": t["model.norm.weight"][:-1]})),
            "model.norm.weight does not have the shape that config.json says",
        ),
        (
            "model.safetensors",
            lambda p: damage(p, lambda t: t.update({"model.norm.weight": t["model.norm.weight"].astype("f2")})),
            "model.norm.weight is F16, not F32",
        ),
        ("model.safetensors", lambda p: p.unlink(), "No such file or directory"),
        ("optimizer.safetensors", lambda p: damage(p, lambda t: None), "does not say --text"),
        ("config.json", lambda p: p.write_text("{"), "not a JSON object"),
        ("config.json", lambda p: p.write_text("{}"), "hidden_size is missing or no size"),
        (
            "config.json",
            lambda p: p.write_text(p.read_text().replace('"pre"', '"up"')),
            "truenorm.placement is missing",
        ),
        (
            "config.json",
            lambda p: p.write_text(p.read_text().replace('"rms"', '"rm"')),
            "truenorm.norm is missing or no",
        ),
        ("config.json", lambda p: p.write_text(p.read_text().replace('":\t16', '":\t15')), "the width is no multiple"),
    ],
)
def test_damaged_checkpoints(llama, name, change, message):
    llama.train("--out", "run")
    path = llama.checkpoint("run") / name
    change(path)
    command = ["eval", path.parent, "--text", "text"] if name == "config.json" else ["train", "--resume", "run"]
    line = llama.fails(*command)
    assert name in line and message in line


def test_output_that_cannot_be_written(llama):
    with open("/dev/full", "w") as full:
        done = subprocess.run([LLAMA, "--help"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, "llama: standard output cannot be written\n")
