"""simplenet, info, bench and the help texts."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from norm_reference import reference


class SplitMix:
    def __init__(self, seed):
        self.state = seed

    def bits(self):
        mask = 2**64 - 1
        self.state = z = (self.state + 0x9E3779B97F4A7C15) & mask
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
        return z ^ z >> 31

    def uniform(self):
        return (self.bits() >> 11) * 2.0**-53

    def trial(self, p):
        even = True
        while (u := self.uniform()) < p:
            p, even = u, not even
        return even

    def normal(self):
        while True:
            k = 0
            while self.trial(0.5):
                k += 1
            if not all(self.trial(0.5) for _ in range(k * (k - 1))):
                continue
            x = self.uniform()
            if all(self.trial(x * (2 * k + x) / (2 * k + 2)) for _ in range(k + 1)):
                return -(k + x) if self.bits() >> 63 else k + x


def parse_simplenet(text):
    parts = re.fullmatch(r"input, shape (.+):\n([^a-z]+)\noutput, shape (.+):\n([^a-z]+)\n", text).groups()
    shapes = [tuple(json.loads(s.replace("(", "[").replace(")", "]"))) for s in parts[::2]]
    return shapes, [np.array(json.loads(p)) for p in parts[1::2]]


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_simplenet(cli, seed):
    rng = SplitMix(seed)
    bound = 10**-0.5
    a = np.float32([bound * (2 * rng.uniform() - 1) for _ in range(50)]).reshape(5, 10)
    b = np.float32([bound * (2 * rng.uniform() - 1) for _ in range(5)])
    x = np.float32([rng.normal() for _ in range(20)]).reshape(2, 10)
    z = np.float32(x.astype("f8") @ a.astype("f8").T + b)
    shapes, (got_x, got_y) = parse_simplenet(cli.ok("simplenet", "--seed", seed))
    assert shapes == [(2, 10), (2, 5)] == [got_x.shape, got_y.shape]
    assert np.abs(got_x - x).max() < 1e-6
    assert np.abs(got_y - reference(z)).max() < 1e-6


def test_simplenet_is_reproducible(cli):
    first = cli.ok("simplenet", "--seed", 7)
    assert {cli.ok("simplenet", "--seed", 7, env={"TN_ISA": isa}) for isa in cli.isas()} == {first}
    assert cli.ok("simplenet") == cli.ok("simplenet", "--seed", 0) != first


def test_simplenet_input_is_standard_normal(cli):
    values = np.concatenate([parse_simplenet(cli.ok("simplenet", "--seed", s))[1][0].ravel() for s in range(100)])
    assert abs(values.mean()) < 0.1
    assert abs(values.std() - 1) < 0.08
    assert abs((np.abs(values) < 0.6745).mean() - 0.5) < 0.05


def test_info(cli):
    info = dict(line.split(":", 1) for line in cli.ok("info").splitlines())
    assert re.fullmatch(r" +\d+\.\d+\.\d+", info["version"])
    assert info["isa"].strip() in info["available"].split()
    assert info["cpu"].strip()
    assert all(re.fullmatch(r" +(\d+ KiB|unknown)", info[f"{level} cache"]) for level in ("L1d", "L2", "L3"))
    assert int(info["threads"]) >= 1
    assert re.search(r"^isa: +scalar$", cli.ok("info", env={"TN_ISA": "scalar"}), re.M)
    assert re.search(r"^threads: +3$", cli.ok("info", env={"OMP_NUM_THREADS": "3"}), re.M)


@pytest.mark.parametrize("threads", [1, 2])
def test_bench_json(cli, threads):
    bench = json.loads(cli.ok("bench", "--quick", "--json", "--threads", threads))
    assert bench["threads"] == threads and bench["isa"] in cli.isas()
    results = bench["results"]
    assert len({(r["kind"], r["dtype"], r["rows"], r["n"], r["strided"], r["grade"]) for r in results}) == 72
    assert len(results) == 72
    assert all(r["us"] > 0 and r["gb_per_s"] > 0 and r["memcpy_us"] > 0 and r["ratio"] > 0 for r in results)


def test_bench_table(cli):
    lines = cli.ok("bench", "--quick").splitlines()
    assert lines[1].split() == ["norm", "dtype", "shape", "grade", "us", "GB/s", "x", "memcpy"]
    assert len(lines) == 2 + 72


@pytest.mark.parametrize("args", [["--help"], ["-h"], *([c, "--help"] for c in ("norm", "simplenet", "bench", "info"))])
def test_help(cli, args):
    text = cli.ok(*args)
    assert text.startswith("Usage: truenorm")
    assert max(map(len, text.splitlines())) <= 110


def test_help_names_every_norm_option(cli):
    text = cli.ok("norm", "--help")
    source = Path(__file__).parents[1] / "cli" / "cmd_norm.c"
    options = set(re.findall(r'"(--[a-z0-9-]+)", ', source.read_text()))
    assert len(options) == 22
    assert all(re.search(rf"^  (-o, )?{o}\b", text, re.M) for o in options)


def test_version(cli):
    header = (Path(__file__).parents[1] / "include" / "truenorm.h").read_text()
    version = ".".join(re.findall(r"#define TN_VERSION_\w+ (\d+)", header))
    assert cli.ok("--version") == f"truenorm {version}\n"
