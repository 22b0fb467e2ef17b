"""The examples in docs/python.md and in the docstrings give what they show."""

from __future__ import annotations

import doctest
from pathlib import Path

import truenorm


def test_page() -> None:
    page = Path(__file__).parents[2] / "docs" / "python.md"
    result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted > 10 and result.failed == 0


def test_docstrings() -> None:
    result = doctest.testmod(truenorm)
    assert result.attempted >= 2 and result.failed == 0


def test_everything_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
    for name in truenorm.__all__:
        assert getattr(truenorm, name).__doc__
        assert name in text or name in {"Moments", "__version__", "on_set_isa"}
