#!/usr/bin/env python3
"""Make examples/data/digits.npy again: the digits that scikit-learn ships (Alpaydin and Kaynak 1998, CC BY 4.0).

One uint8 array [1797, 65] in .npy format 1.0: 8 x 8 pixels of 0 ... 16, then the digit. Nothing is downloaded when
this runs. How to run it:

    python3.11 -m venv /tmp/digits
    /tmp/digits/bin/pip install scikit-learn numpy
    /tmp/digits/bin/python tools/make_digits.py            # writes examples/data/digits.npy
    /tmp/digits/bin/python tools/make_digits.py --check    # only compares, exit 1 on any difference
"""

import argparse
import io
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

OUTPUT = Path(__file__).resolve().parent.parent / "examples" / "data" / "digits.npy"


def main():
    parser = argparse.ArgumentParser(description="Export scikit-learn's digits.")
    parser.add_argument("--check", action="store_true", help="compare with the file that is there")
    arguments = parser.parse_args()
    digits = load_digits()
    rows = np.concatenate([digits.data, digits.target[:, None]], axis=1).astype(np.uint8)
    stream = io.BytesIO()
    np.lib.format.write_array(stream, rows, version=(1, 0))
    if arguments.check:
        same = OUTPUT.exists() and OUTPUT.read_bytes() == stream.getvalue()
        print("same" if same else "different")
        sys.exit(0 if same else 1)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_bytes(stream.getvalue())


if __name__ == "__main__":
    main()
