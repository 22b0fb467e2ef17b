"""Writes the tables of docs/transformers.md from the registry of truenorm.transformers and the models of the tests.

Usage: python scripts/transformers_table.py [--check]        (--check: fail if the file would change; measures nothing)
"""

from __future__ import annotations

import copy
import sys
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python" / "tests"))

import torch  # noqa: E402
from transformers import logging  # noqa: E402
from transformers_cases import cases_of, classes_by_group, f32_error, load, tensors  # noqa: E402
from transformers_models import ALL, build  # noqa: E402
from truenorm.transformers import GROUPS, covered_classes, known_classes, patch  # noqa: E402
from truenorm.transformers.fingerprint import fingerprint  # noqa: E402
from truenorm.transformers.semantics import CLASS_HOW  # noqa: E402

DOC = ROOT / "docs" / "transformers.md"


def models_by_class() -> dict[str, list[str]]:
    """Qualified class name -> the tiny models of the tests in which it is replaced."""
    table: dict[str, list[str]] = {}
    for kind, name in ALL:
        for cls in patch(build(kind, name)).replaced:
            if name not in table.setdefault(cls, []):
                table[cls].append(name)
    return table


def group_table() -> list[str]:
    """One row a group."""
    lines = ["| group | classes | what it computes | result | how |", "|---|---:|---|---|---|"]
    for group, s in GROUPS.items():
        count = sum(g == group for g in known_classes().values())
        formula = s.formula.replace("|", "\\|")
        lines.append(f"| {group} | {count} | {s.title}: `{formula}` | {s.out} | {s.how or f'**no**: {s.reason}'} |")
    return lines


def class_table() -> list[str]:
    """One row a class."""
    used = models_by_class()
    lines = ["| class | module of transformers.models | group | replaced | tested |", "|---|---|---|---|---|"]
    for name, group in sorted(known_classes().items(), key=lambda item: (list(GROUPS).index(item[1]), item[0])):
        module, _, cls = name.removeprefix("transformers.models.").rpartition(".")
        s = GROUPS[group]
        models = ", ".join(used.get(name, []))
        how = CLASS_HOW.get(cls, s.how) or "no"
        tested = "alone" + (f"; in {models}" if models else "") if s.covered else "its text"
        lines.append(f"| {cls} | {module} | {group} | {how} | {tested} |")
    return lines


def measure(group: str, names: list[str]) -> str:
    """Against classes of the group with different texts, parameters of the input's dtype: the least share of bit-equal
    elements in bf16 and f16, and the largest difference in f32."""
    texts = {fingerprint(load(name)): name for name in reversed(names)}
    equal, most = {torch.bfloat16: 1.0, torch.float16: 1.0}, 0.0
    for case in (case for name in texts.values() for case in cases_of(name, group)):
        for dtype in (torch.float32, *equal):
            module, inputs = copy.deepcopy(case.module).to(dtype), case.inputs(dtype)
            try:
                expected = tensors(module(*inputs))
            except RuntimeError:
                continue
            patch(module)
            for a, b in zip(tensors(module(*inputs)), expected, strict=True):
                if dtype == torch.float32:
                    most = max(most, f32_error(a, b, 1.0).max().item())
                else:
                    equal[dtype] = min(equal[dtype], (a == b).double().mean().item())
    shares = " | ".join(f"{100 * share:.3f} %" for share in equal.values())
    return f"| {group} | {most:.1f} | {shares} |"


def measured_table() -> list[str]:
    """One row a group."""
    lines = ["| group | f32: most, in 2^-23 (abs(y) + 1) | bf16: bit-equal | f16: bit-equal |", "|---|---:|---:|---:|"]
    return lines + [measure(group, names) for group, names in classes_by_group().items()]


def fill(text: str, tables: dict[str, list[str]]) -> str:
    """The text with each part between <!-- name --> and <!-- end --> replaced."""
    for name, lines in tables.items():
        head, marker, rest = text.partition(f"<!-- {name} -->\n")
        _, end, tail = rest.partition("<!-- end -->\n")
        if not marker or not end:
            raise SystemExit(f"{DOC}: no place for the table {name}")
        text = head + marker + "\n".join(lines) + "\n" + end + tail
    return text


def main() -> None:
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    old = DOC.read_text()
    count = f"{len(covered_classes())} of {len(known_classes())} classes are replaced."
    tables = {"count": [count], "groups": group_table(), "classes": class_table()}
    if "--check" not in sys.argv[1:]:
        tables["measured"] = measured_table()
    new = fill(old, tables)
    if "--check" in sys.argv[1:]:
        raise SystemExit(0 if new == old else f"{DOC} is not current: run scripts/transformers_table.py")
    DOC.write_text(new)


if __name__ == "__main__":
    main()
