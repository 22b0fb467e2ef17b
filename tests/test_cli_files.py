"""`truenorm norm`: file formats and orders, replaced outputs, long runs, the same bits everywhere."""

import hashlib
import os
import pty
import re
import select
import signal
import subprocess
import time

import numpy as np
import pytest
from conftest import CLI
from norm_reference import DTYPES, assert_close, draw, reference

RMS = ["norm", "--kind", "rms"]


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_format_versions(cli, version):
    x = draw((3, 8))
    cli.save("x.npy", x, version)
    cli.ok("norm", "--kind", "rms", "x.npy", "-o", "y.npy")
    assert_close(cli.load("y.npy"), reference(x))


def test_unpadded_header(cli):
    """Data at an odd offset, which other writers of the format produce."""
    x = draw((3, 40))
    for spaces in range(4):
        header = b"{'shape':(3,40),'descr':'<f4','fortran_order':False}" + b" " * spaces + b"\n"
        head = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
        (cli.path / "x.npy").write_bytes(head + x.tobytes())
        cli.ok("norm", "--kind", "layer", "--residual", "x.npy", "x.npy", "-o", "y.npy")
        assert_close(cli.load("y.npy"), reference(x, "layer", residual=x))


@pytest.mark.parametrize("descr", ["<u2", "<i2", "|V2", "<V2"])
def test_bf16_files(cli, descr):
    x = draw((3, 8), "bf16")
    head = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': (3, 8), }}\n".encode()
    (cli.path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + x.tobytes())
    cli.ok("norm", "--bf16", "--kind", "rms", "x.npy", "-o", "y.npy")
    assert_close(cli.load("y.npy", bf16=True), reference(x))


def test_bf16_saved_by_ml_dtypes(cli):
    x = draw((3, 8), "bf16")
    np.save(cli.path / "x.npy", x)
    cli.ok("norm", "--bf16", "--kind", "rms", "x.npy", "-o", "y.npy")
    assert_close(cli.load("y.npy", bf16=True), reference(x))


@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 8), (2, 3, 4, 8)])
def test_fortran_order(cli, shape):
    x, r, g = (np.asfortranarray(draw(shape, seed=i)) for i in range(3))
    w = np.asfortranarray(draw(shape[-2:], seed=4))
    cli.save("r.npy", r)
    cli.save("g.npy", g)
    cli.save("w.npy", w)
    y = cli.norm(
        x, "--kind", "layer", "--weight", "w.npy", "--residual", "r.npy", "--sum", "s.npy", "--gate", "g.npy",
        "--gate-order", "after",
    )  # fmt: skip
    s = cli.load("s.npy")
    assert np.isfortran(y) and np.isfortran(s)
    assert (s == x + r).all()
    assert_close(y, reference(x, "layer", weight=w, residual=r, gate=g, order="after"))


@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 8)])
@pytest.mark.parametrize("orders", ["CF", "FC"])
def test_mixed_orders(cli, shape, orders):
    x, r = np.asarray(draw(shape), order=orders[0]), np.asarray(draw(shape, seed=1), order=orders[1])
    cli.save("r.npy", r)
    y = cli.norm(x, "--kind", "rms", "--residual", "r.npy", "--sum", "s.npy")
    assert np.isfortran(y) == (orders[0] == "F")
    assert (cli.load("s.npy") == x + r).all()
    assert_close(y, reference(x, residual=r))


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0,), (0, 0), (2, 0, 3), (0, 2, 3), (2, 3, 0)])
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("kind", ["rms", "layer", "l2"])
def test_no_rows_or_columns(cli, shape, order, kind):
    x = np.zeros(shape, "f4", order=order)
    cli.save("r.npy", x)
    cli.save("w.npy", np.ones(shape[-1], "f4"))
    y = cli.norm(x, "--kind", kind, "--weight", "w.npy", "--residual", "r.npy", "--sum", "s.npy")
    assert (y.shape, y.dtype) == (shape, x.dtype)
    assert cli.load("s.npy").shape == shape
    y = cli.norm(x, "--kind", kind, "--out-dtype", "int8", "--scale-out", "s.npy")
    assert (y.shape, cli.load("s.npy").shape) == (shape, (*shape[:-1], 1))


def test_output_may_be_the_input(cli):
    x, r = draw((5, 16)), draw((5, 16), seed=1)
    cli.save("x.npy", x)
    cli.save("r.npy", r)
    cli.ok("norm", "--kind", "rms", "--residual", "r.npy", "--sum", "r.npy", "x.npy", "-o", "./x.npy")
    assert_close(cli.load("x.npy"), reference(x, residual=r))
    assert (cli.load("r.npy") == x + r).all()
    assert sorted(cli.files()) == ["r.npy", "x.npy"]


def test_output_keeps_mode_and_follows_links(cli):
    (cli.path / "real.npy").write_bytes(b"old")
    (cli.path / "real.npy").chmod(0o640)
    (cli.path / "y.npy").symlink_to("real.npy")
    x = draw((5, 16))
    assert_close(cli.norm(x, "--kind", "rms"), reference(x))
    assert (cli.path / "y.npy").is_symlink()
    assert (cli.path / "real.npy").stat().st_mode & 0o777 == 0o640


def test_new_output_has_the_usual_mode(cli):
    cli.save("x.npy", draw(4))
    subprocess.run(["sh", "-c", 'umask 027; "$0" norm --kind rms x.npy -o y.npy', CLI], cwd=cli.path, check=True)
    assert (cli.path / "y.npy").stat().st_mode & 0o777 == 0o640


def test_name_of_the_greatest_length(cli):
    name = "x" * 251 + ".npy"
    x = draw(4)
    cli.save(name, x)
    cli.ok("norm", "--kind", "rms", name, "-o", name)
    assert_close(cli.load(name), reference(x))


@pytest.mark.parametrize("shape", [(3, 7000, 513), (700, 33, 512)])
def test_slabs(cli, shape):
    """Larger than a slab, either within an axis or over several."""
    x, w = draw(shape), draw(shape[1:], seed=1)
    cli.save("w.npy", w)
    y = cli.norm(x, "--kind", "rms", "--weight", "w.npy", "--threads", 2)
    # The rows where slabs meet are among those around each MiB.
    step = 2**20 // (4 * shape[-1])
    rows = np.unique(np.concatenate([np.arange(i, shape[0] * shape[1], step) for i in range(2)]))
    i, j = rows // shape[1], rows % shape[1]
    assert_close(y[i, j], reference(x[i, j], weight=w[j]))
    assert np.abs((y / w).astype(np.float64) ** 2).mean() == pytest.approx(1, abs=1e-3)


# ---- same bits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits_for_every_isa_and_thread_count(cli, dtype):
    for i, name in enumerate(["x", "r", "g"]):
        cli.save(f"{name}.npy", draw((70, 3, 1023), dtype, i))
    cli.save("w.npy", draw((3, 1023), dtype, 4))
    names = cli.isas()
    assert names[0] == "scalar"
    digests = set()
    for isa in names:
        for threads in 1, 2, 3:
            cli.ok(
                "norm", "--bf16", "--kind", "layer", "--weight", "w.npy", "--residual", "r.npy", "--sum", "s.npy",
                "--gate", "g.npy", "--gate-order", "before", "--threads", threads, "x.npy", "-o", "y.npy",
                env={"TN_ISA": isa},
            )  # fmt: skip
            files = [(cli.path / f).read_bytes() for f in ("y.npy", "s.npy")]
            digests.add(hashlib.sha256(b"".join(files)).hexdigest())
    assert len(digests) == 1


# ---- long runs --------------------------------------------------------------------------------------


def sparse(cli, name, rows, n=4096):
    """A file of f16 zeros that takes no room."""
    header = np.lib.format.header_data_from_array_1_0(np.zeros(0, "f2")) | {"shape": (rows, n)}
    with open(cli.path / name, "wb") as f:
        np.lib.format.write_array_header_1_0(f, header)
        f.truncate(f.tell() + 2 * rows * n)


LONG = [*RMS, "--threads", "1", "--out-dtype", "int8", "--scale", "1", "big.npy", "-o", "y.npy"]
SLOW = {**os.environ, "TN_ISA": "scalar"}


def start_long_run(cli, **kwargs):
    """A run of some seconds that has begun to write its output."""
    sparse(cli, "big.npy", 2**16)
    (cli.path / "y.npy").write_bytes(b"old output")
    process = subprocess.Popen([CLI, *LONG], cwd=cli.path, env=SLOW, **kwargs)
    while len(list(cli.path.iterdir())) < 3:
        assert process.poll() is None
        time.sleep(0.001)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_signals_leave_no_file(cli, number):
    process = start_long_run(cli, stderr=subprocess.PIPE)
    process.send_signal(number)
    assert process.communicate(timeout=60)[1] == b""
    assert process.returncode == -number
    assert sorted(cli.files()) == ["big.npy", "y.npy"]
    assert (cli.path / "y.npy").read_bytes() == b"old output"


def test_input_that_shrinks(cli):
    process = start_long_run(cli, stderr=subprocess.PIPE)
    os.truncate(cli.path / "big.npy", 4096)
    assert process.communicate(timeout=60)[1] == b"truenorm: an input file shrank or could not be read\n"
    assert process.returncode == 2
    assert (cli.path / "y.npy").read_bytes() == b"old output"
    assert sorted(cli.files()) == ["big.npy", "y.npy"]


def test_memory_stays_bounded(cli):
    sparse(cli, "big.npy", 2**15)
    pid = os.spawnve(
        os.P_NOWAIT, CLI, [CLI, *LONG[:-3], str(cli.path / "big.npy"), "-o", str(cli.path / "y.npy")], os.environ
    )
    _, status, usage = os.wait4(pid, 0)
    assert status == 0
    assert usage.ru_maxrss < 150 * 1024
    assert np.load(cli.path / "y.npy", mmap_mode="r").shape == (2**15, 4096)


def test_no_progress_bar_in_a_pipe(cli):
    process = start_long_run(cli, stderr=subprocess.PIPE)
    time.sleep(1)
    process.terminate()
    assert process.communicate(timeout=60)[1] == b""


def test_progress_bar_on_a_terminal(cli):
    master, slave = pty.openpty()
    process = start_long_run(cli, stderr=slave)
    os.close(slave)
    shown = b""
    deadline = time.monotonic() + 60
    while not re.search(rb"\r\[#*-*\] +\d+%  [0-9.]+ GB/s", shown) and time.monotonic() < deadline:
        if select.select([master], [], [], 1)[0]:
            try:
                shown += os.read(master, 4096)
            except OSError:  # the other end is closed
                break
    process.terminate()
    process.wait(60)
    os.close(master)
    assert re.search(rb"\r\[#*-*\] +\d+%  [0-9.]+ GB/s", shown)


def test_no_progress_bar_for_a_short_run(cli):
    cli.save("x.npy", draw((3, 8)))
    master, slave = pty.openpty()
    assert subprocess.run([CLI, *RMS, "x.npy", "-o", "y.npy"], cwd=cli.path, stderr=slave).returncode == 0
    assert select.select([master], [], [], 0)[0] == []
    os.close(slave)
    os.close(master)
