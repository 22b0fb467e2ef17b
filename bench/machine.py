"""What the machine is. Standard library only."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from pathlib import Path
from typing import Any

from grid import usable_processors

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def _first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").splitlines()[0].strip()
    except (OSError, IndexError):
        return ""


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.machine()
    found = {
        key: re.search(rf"^{key}\s*:\s*(.*)$", text, re.MULTILINE) for key in ("model name", "cpu family", "model")
    }
    if found["model name"] is None:
        return platform.machine()
    numbers = [f"{key.split()[-1]} {m.group(1)}" for key, m in found.items() if m and key != "model name"]
    return f"{found['model name'].group(1)} ({', '.join(numbers)})" if numbers else found["model name"].group(1)


def _caches() -> list[str]:
    """Such as "L1d 48K"."""
    caches = []
    for folder in sorted(CACHES.glob("index*")):
        kind = _first_line(folder / "type")
        if kind != "Instruction":
            caches.append(
                f"L{_first_line(folder / 'level')}{'d' if kind == 'Data' else ''} {_first_line(folder / 'size')}"
            )
    return caches


def _compiler() -> str:
    try:
        done = subprocess.run(["cc", "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.splitlines()[0]


def _ticks() -> tuple[int, int]:
    """(busy, all) of the processors together since the machine started; zeros where that cannot be known."""
    fields = [int(field) for field in _first_line(Path("/proc/stat")).split()[1:9]]
    return (sum(fields) - fields[3] - fields[4], sum(fields)) if len(fields) == 8 else (0, 0)


def busy_processors(seconds: float = 1.0) -> float:
    """How many processors others keep busy, while this process sleeps."""
    before = _ticks()
    time.sleep(seconds)
    busy, total = (after - then for after, then in zip(_ticks(), before, strict=True))
    return round((os.cpu_count() or 1) * busy / total, 2) if total else 0.0


def describe() -> dict[str, Any]:
    return {
        "cpu": _cpu_model(),
        "processors": usable_processors(),
        "caches": _caches(),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "compiler": _compiler(),
        "python": platform.python_version(),
        "busy": busy_processors(),
    }
