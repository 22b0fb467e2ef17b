"""The example program `llama`; TRUENORM_LLAMA names it, TRUENORM_LLAMA64 the same in double."""

import json
import os
import random
import re
import subprocess

from safetensors.numpy import load_file

LLAMA = os.path.abspath(os.environ.get("TRUENORM_LLAMA", "build/examples/llama/llama"))
LLAMA64 = os.path.abspath(os.environ.get("TRUENORM_LLAMA64", "build/examples/llama/llama64"))
# Small enough that a run takes a moment.
TINY = ["--text", "text", "--valid", "text", "--layers", "2", "--width", "16", "--heads", "2", "--hidden", "24",
        "--context", "16", "--batch", "4", "--warmup", "2"]  # fmt: skip


class Llama:
    """The program in a folder with a text."""

    def __init__(self, path):
        self.path = path
        words = ["norm", "layer", "mean", "square", "root", "scale", "shift", "gain", "bias", "row"]
        text = " ".join(random.Random(1).choices(words, k=3000))
        (path / "text").write_text(text)

    def run(self, *args, program=LLAMA, **kwargs):
        return subprocess.run(
            [program, *map(str, args)], cwd=self.path, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=300, **kwargs,
        )  # fmt: skip

    def ok(self, *args, **kwargs):
        done = self.run(*args, **kwargs)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def fails(self, *args):
        """One line on stderr, status 2, and every file as it was; that line."""
        before = self.files()
        done = self.run(*args)
        assert (done.returncode, done.stdout) == (2, "")
        assert re.fullmatch(r"llama: [^\n]+\n", done.stderr)
        assert self.files() == before
        return done.stderr[len("llama: ") : -1]

    def train(self, *args, steps=12, **kwargs):
        return self.ok("train", *TINY, "--steps", steps, *args, **kwargs)

    def start(self, *args, **kwargs):
        return subprocess.Popen([LLAMA, *map(str, args)], cwd=self.path, stdin=subprocess.DEVNULL, **kwargs)

    def files(self):
        return {str(p): p.read_bytes() for p in sorted(self.path.rglob("*")) if p.is_file()}

    def checkpoint(self, run):
        """The folder of the only checkpoint."""
        (step,) = self.steps(run)
        return self.path / run / f"checkpoint-{step}"

    def steps(self, run):
        """Of the checkpoints that are there."""
        return sorted(int(p.name.removeprefix("checkpoint-")) for p in (self.path / run).glob("checkpoint-*"))

    def bits(self, run):
        return {name: (self.checkpoint(run) / name).read_bytes() for name in ("model.safetensors", "config.json")} | {
            name: array.tobytes() for name, array in load_file(self.checkpoint(run) / "optimizer.safetensors").items()
        }

    def metrics(self, run):
        lines = (self.path / run / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def losses(self, run):
        return [m["loss"] for m in self.metrics(run) if "loss" in m]
