"""Every way to fail: status 2, one line on stderr that names the file, and no file touched."""

import resource
import subprocess

import numpy as np
import pytest
from conftest import CLI
from norm_reference import draw

RMS = ["norm", "--kind", "rms"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "no command given"),
        (["nrom"], "unknown command 'nrom'"),
        (["--verbose"], "unknown option '--verbose'"),
        (["norm", "--frobnicate", "x.npy"], "--frobnicate"),
        (["norm", "x.npy", "-o"], "requires an argument"),
        (["simplenet", "--sede", "1"], "--sede"),
        (["simplenet", "--seed", "one"], "--seed: 'one' is not a whole number"),
        (["simplenet", "--seed", "-1"], "--seed: '-1' is not a whole number"),
        (["simplenet", "--seed", "18446744073709551616"], "--seed: 18446744073709551616 is too large"),
        (["simplenet", "now"], "unexpected argument 'now'"),
        (["info", "--all"], "--all"),
        (["info", "now"], "unexpected argument 'now'"),
        (["bench", "--slow"], "--slow"),
        (["bench", "--threads", "0"], "--threads: 0 is not between 1 and 4096"),
        (["bench", "now"], "unexpected argument 'now'"),
        (["norm", "x.npy", "-o", "y.npy"], "--kind is missing"),
        (["norm", "--kind", "batch", "x.npy", "-o", "y.npy"], "--kind: 'batch' is none of rms, layer, l2"),
        ([*RMS, "-o", "y.npy"], "no input file"),
        ([*RMS, "x.npy"], "no output file"),
        ([*RMS, "x.npy", "w.npy", "-o", "y.npy"], "w.npy: unexpected argument after x.npy"),
        ([*RMS, "--eps", "small", "x.npy", "-o", "y.npy"], "--eps: 'small' is not a number"),
        ([*RMS, "--eps", "nan", "x.npy", "-o", "y.npy"], "--eps: 'nan' is not a number"),
        ([*RMS, "--eps", "inf", "x.npy", "-o", "y.npy"], "--eps: inf is not finite"),
        ([*RMS, "--eps=-1e-6", "x.npy", "-o", "y.npy"], "--eps: -1e-6 is less than 0"),
        ([*RMS, "--eps-mode", "none", "x.npy", "-o", "y.npy"], "--eps-mode: 'none' is none of inside, outside, clamp"),
        ([*RMS, "--cast", "twice", "x.npy", "-o", "y.npy"], "--cast: 'twice' is none of once, before_scale, t5"),
        ([*RMS, "--grade", "best", "x.npy", "-o", "y.npy"], "--grade: 'best' is none of exact, fast"),
        ([*RMS, "--out-dtype", "i4", "x.npy", "-o", "y.npy"], "--out-dtype: 'i4' is none of f64,"),
        ([*RMS, "--group", "3", "x.npy", "-o", "y.npy"], "--group 3 does not divide the last axis of x.npy (4)"),
        ([*RMS, "--group", "0", "x.npy", "-o", "y.npy"], "--group: 0 is not between"),
        ([*RMS, "--partial", "5", "x.npy", "-o", "y.npy"], "--partial 5 is more than the last axis of x.npy (4)"),
        ([*RMS, "--group", "2", "--partial", "3", "x.npy", "-o", "y.npy"], "--partial 3 is more than the --group of"),
        ([*RMS, "--divisor", "0", "x.npy", "-o", "y.npy"], "--divisor: 0 is not above 0"),
        ([*RMS, "--threads", "many", "x.npy", "-o", "y.npy"], "--threads: 'many' is not a whole number"),
        ([*RMS, "--weight-offset", "1", "x.npy", "-o", "y.npy"], "--weight-offset needs --weight"),
        ([*RMS, "--sum", "s.npy", "x.npy", "-o", "y.npy"], "--sum needs --residual"),
        ([*RMS, "--gate", "x.npy", "x.npy", "-o", "y.npy"], "--gate needs --gate-order"),
        ([*RMS, "--gate-order", "after", "x.npy", "-o", "y.npy"], "need --gate"),
        ([*RMS, "--act", "silu", "x.npy", "-o", "y.npy"], "need --gate"),
        ([*RMS, "--gate-order", "both", "x.npy", "-o", "y.npy"], "--gate-order: 'both' is none of before, after"),
        ([*RMS, "--act", "gelu", "x.npy", "-o", "y.npy"], "--act: 'gelu' is none of silu, sigmoid"),
        ([*RMS, "--scale", "2", "x.npy", "-o", "y.npy"], "need --out-dtype int8"),
        ([*RMS, "--scale-out", "s.npy", "x.npy", "-o", "y.npy"], "need --out-dtype int8"),
        ([*RMS, "--out-dtype", "int8", "x.npy", "-o", "y.npy"], "need either --scale or --scale-out"),
        ([*RMS, "--out-dtype", "int8", "--scale", "0", "x.npy", "-o", "y.npy"], "--scale: 0 is not above 0"),
        (
            [*RMS, "--out-dtype", "int8", "--scale", "1", "--scale-out", "s.npy", "x.npy", "-o", "y.npy"],
            "need either --scale or --scale-out",
        ),
        ([*RMS, "--weight", "w3.npy", "x.npy", "-o", "y.npy"],
         "w3.npy: shape (3,) does not match the last axis of x.npy (4)"),
        ([*RMS, "--bias", "w3.npy", "x.npy", "-o", "y.npy"],
         "w3.npy: shape (3,) does not match the last axis of x.npy (4)"),
        ([*RMS, "--weight", "w54.npy", "x.npy", "-o", "y.npy"],
         "w54.npy: shape (5, 4) does not match the last two axes of x.npy (2, 4)"),
        ([*RMS, "--weight", "x.npy", "w.npy", "-o", "y.npy"],
         "x.npy: shape (2, 4) does not match the last two axes of w.npy (4,)"),
        ([*RMS, "--weight", "c.npy", "x.npy", "-o", "y.npy"], "c.npy: shape (2, 2, 2, 4) is neither (n,) nor"),
        ([*RMS, "--residual", "w54.npy", "x.npy", "-o", "y.npy"], "w54.npy: shape (5, 4) does not match x.npy (2, 4)"),
        ([*RMS, "--residual", "w.npy", "x.npy", "-o", "y.npy"], "w.npy: shape (4,) does not match x.npy (2, 4)"),
        ([*RMS, "--gate", "w54.npy", "--gate-order", "after", "x.npy", "-o", "y.npy"],
         "w54.npy: shape (5, 4) does not match x.npy (2, 4)"),
        ([*RMS, "--residual", "f.npy", "c.npy", "-o", "y.npy"], "f.npy: one of it and c.npy is in Fortran order"),
        ([*RMS, "none.npy", "-o", "y.npy"], "none.npy: No such file or directory"),
        ([*RMS, "--weight", "none.npy", "x.npy", "-o", "y.npy"], "none.npy: No such file or directory"),
        ([*RMS, "folder", "-o", "y.npy"], "folder: not a regular file"),
        ([*RMS, "/dev/null", "-o", "y.npy"], "/dev/null: not a regular file"),
        ([*RMS, "empty.npy", "-o", "y.npy"], "empty.npy: not a .npy file"),
        ([*RMS, "text.npy", "-o", "y.npy"], "text.npy: not a .npy file"),
        ([*RMS, "scalar.npy", "-o", "y.npy"], "scalar.npy: shape () has no axis to normalise"),
        ([*RMS, "int.npy", "-o", "y.npy"], "int.npy: dtype '<i4' is none of f64, f32, f16, bf16"),
        ([*RMS, "bool.npy", "-o", "y.npy"], "bool.npy: dtype '|b1' is none of"),
        ([*RMS, "u2.npy", "-o", "y.npy"], "u2.npy: dtype '<u2' is no float; if it holds bf16, say --bf16"),
        ([*RMS, "big.npy", "-o", "y.npy"], "big.npy: dtype '>f4' is big-endian"),
        ([*RMS, "record.npy", "-o", "y.npy"], "record.npy: structured dtypes are not supported"),
        ([*RMS, "cut.npy", "-o", "y.npy"], "cut.npy: the header asks for 32 bytes of data, the file has 31"),
        ([*RMS, "long.npy", "-o", "y.npy"], "long.npy: the header asks for 32 bytes of data, the file has 33"),
        ([*RMS, "cut_header.npy", "-o", "y.npy"], "cut_header.npy: the file ends within its header"),
        ([*RMS, "huge.npy", "-o", "y.npy"], "huge.npy: the array is too large"),
        ([*RMS, "version.npy", "-o", "y.npy"], "version.npy: format version 9.0 is not supported"),
        ([*RMS, "x.npy", "-o", "folder"], "folder: not a regular file"),
        ([*RMS, "x.npy", "-o", "/dev/null"], "/dev/null: not a regular file"),
        ([*RMS, "x.npy", "-o", "nowhere/y.npy"], "nowhere/y.npy: No such file or directory"),
        ([*RMS, "x.npy", "-o", "z/"], "z/: "),
        ([*RMS, "x.npy", "-o", ""], "not a file name"),
        ([*RMS, "x.npy", "-o", "dangling.npy"], "dangling.npy: a symbolic link to nowhere"),
        ([*RMS, "x.npy", "-o", "a" * 5000], "File name too long"),
        ([*RMS, "x.npy", "-o", "a" * 256], "File name too long"),
        ([*RMS, "--residual", "x.npy", "--sum", "./y.npy", "x.npy", "-o", "y.npy"], "./y.npy: two outputs with"),
        ([*RMS, "--residual", "x.npy", "--sum", "nowhere/s.npy", "x.npy", "-o", "y.npy"], "nowhere/s.npy: No such"),
        ([*RMS, "line\nbreak.npy", "-o", "y.npy"], "line?break.npy: No such file or directory"),
    ],
)  # fmt: skip
def test_errors(cli, args, message):
    x = draw((2, 4))
    cli.save("x.npy", x)
    cli.save("w.npy", draw(4))
    cli.save("w3.npy", draw(3))
    cli.save("w54.npy", draw((5, 4)))
    cli.save("c.npy", draw((2, 2, 2, 4)))
    cli.save("f.npy", np.asfortranarray(draw((2, 2, 2, 4))))
    cli.save("scalar.npy", np.float32(1).reshape(()))
    cli.save("int.npy", np.arange(4, dtype="i4"))
    cli.save("bool.npy", np.ones(4, bool))
    cli.save("u2.npy", np.arange(4, dtype="u2"))
    cli.save("big.npy", x.astype(">f4"))
    cli.save("record.npy", np.zeros(2, [("a", "f4")]))
    whole = (cli.path / "x.npy").read_bytes()
    for name, content in {
        "empty.npy": b"",
        "text.npy": b"1 2 3 4 5 6 7\n",
        "cut.npy": whole[:-1],
        "long.npy": whole + b"\0",
        "cut_header.npy": whole[:40],
        "huge.npy": whole.replace(b"(2, 4), }" + b" " * 20, b"(4294967296, 4294967296), }  "),
        "version.npy": whole[:6] + b"\x09" + whole[7:],
        "y.npy": b"old output",
    }.items():
        (cli.path / name).write_bytes(content)
    (cli.path / "folder").mkdir()
    (cli.path / "dangling.npy").symlink_to("nowhere")
    assert message in cli.fails(*args)


def test_disk_limit(cli):
    cli.save("x.npy", draw((100, 100)))
    (cli.path / "y.npy").write_bytes(b"old output")

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    assert "y.npy: File too large" in cli.fails(*RMS, "x.npy", "-o", "y.npy", preexec_fn=limit)


def test_stdout_that_cannot_be_written(cli):
    with open("/dev/full", "w") as full:
        done = subprocess.run([CLI, "info"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, "truenorm: standard output cannot be written\n")
