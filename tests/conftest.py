"""The programs under test; TRUENORM_CLI names the first, llama_program.py says what names the other."""

import os
import re
import shutil
import subprocess

import numpy as np
import pytest
from llama_program import Llama
from norm_reference import BF16

CLI = os.path.abspath(os.environ.get("TRUENORM_CLI") or shutil.which("truenorm") or "build/cli/truenorm")


class Cli:
    """The program in an empty directory."""

    def __init__(self, path):
        self.path = path

    def run(self, *args, env=None, **kwargs):
        return subprocess.run(
            [CLI, *map(str, args)],
            cwd=self.path,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
            **kwargs,
        )

    def ok(self, *args, **kwargs):
        """A run that succeeds and says nothing on stderr; its stdout."""
        done = self.run(*args, **kwargs)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def fails(self, *args, **kwargs):
        """A run that ends with status 2 and one line on stderr, and leaves every file as it was; that line."""
        before = self.files()
        done = self.run(*args, **kwargs)
        assert done.returncode == 2
        assert done.stdout == ""
        assert re.fullmatch(r"truenorm: [^\n]+\n", done.stderr)
        assert self.files() == before
        return done.stderr[len("truenorm: ") : -1]

    def files(self):
        return {
            p.name: p.read_bytes() if p.is_file() and p.stat().st_size < 2**24 else None for p in self.path.iterdir()
        }

    def save(self, name, array, version=None):
        """Writes an array, bf16 as u2."""
        array = array.view("u2") if array.dtype == BF16 else array
        with open(self.path / name, "wb") as f:
            np.lib.format.write_array(f, array, version=version)

    def load(self, name, bf16=False):
        array = np.load(self.path / name)
        assert not bf16 or array.dtype == np.dtype("<u2")
        return array.view(BF16) if bf16 else array

    def isas(self):
        return re.search(r"^available: +(.+)$", self.ok("info"), re.M).group(1).split()

    def norm(self, x, *options, bf16_out=None, name="x.npy", env=None):
        """Saves x, normalises it and loads the result."""
        bf16 = x.dtype == BF16
        self.save(name, x)
        flags = ["--bf16"] if bf16 else []
        assert self.ok("norm", *flags, *options, name, "-o", "y.npy", env=env) == ""
        return self.load("y.npy", bf16 if bf16_out is None else bf16_out)


@pytest.fixture
def cli(tmp_path):
    yield Cli(tmp_path)
    shutil.rmtree(tmp_path)  # some files are large


@pytest.fixture
def llama(tmp_path):
    return Llama(tmp_path)
