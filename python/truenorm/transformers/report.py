"""What patch() did: the classes that were replaced, with their arithmetic, and those that were not, with a reason."""

from __future__ import annotations

from dataclasses import dataclass, field

from .semantics import Semantics

__all__ = ["PatchError", "Replaced", "Report", "Skipped"]


@dataclass
class Replaced:
    """A class whose instances compute through truenorm; count is 0 for a class that is only registered."""

    semantics: Semantics
    count: int = 0


@dataclass
class Skipped:
    """A norm class that was left as it is, with one sentence why."""

    reason: str
    count: int = 0


@dataclass
class Report:
    """The result of patch(). Keys are qualified class names.

    way: "model" (instances of a built model) or "registry" (classes that transformers will build).
    """

    way: str
    replaced: dict[str, Replaced] = field(default_factory=dict)
    skipped: dict[str, Skipped] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many instances were replaced."""
        return sum(entry.count for entry in self.replaced.values())

    def add_replaced(self, name: str, semantics: Semantics, count: int = 1) -> None:
        """Count a replaced class."""
        self.replaced.setdefault(name, Replaced(semantics)).count += count

    def add_skipped(self, name: str, reason: str, count: int = 1) -> None:
        """Count a class that was left; the first reason is kept."""
        self.skipped.setdefault(name, Skipped(reason)).count += count

    def __str__(self) -> str:
        lines = []
        for name, entry in sorted(self.replaced.items()):
            s = entry.semantics
            number = f"{entry.count} x " if entry.count else ""
            lines.append(f"{number}{name.rsplit('.', 1)[-1]}: {s.group}, {s.formula}")
        for name, left in sorted(self.skipped.items()):
            number = f"{left.count} x " if left.count else ""
            lines.append(f"not replaced: {number}{name.rsplit('.', 1)[-1]}: {left.reason}")
        return "\n".join(lines) or "no norm layer found"


class PatchError(RuntimeError):
    """patch(strict=True) found norm layers that it does not replace; nothing was changed. `report` has them."""

    def __init__(self, report: Report) -> None:
        names = ", ".join(f"{name} ({entry.reason})" for name, entry in sorted(report.skipped.items()))
        super().__init__(f"norm layers that would not be replaced: {names}")
        self.report = report
