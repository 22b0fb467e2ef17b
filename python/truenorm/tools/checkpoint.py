"""Checkpoints: tensors by name and what is known about the model, from safetensors or GGUF."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import ToolError, first_line

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Tensor:
    """One tensor; `load` reads it as f64."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    load: Callable[[], Array]


@dataclass
class Checkpoint:
    """config: config.json, or {}. keys: GGUF's key-value pairs that norms need, or {}."""

    path: Path
    format: str
    tensors: list[Tensor] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)


def open_checkpoint(path: Path, each_file: Callable[[list[Path]], Iterator[Path]]) -> Checkpoint:
    """A file, or a folder with config.json and shards. `each_file` iterates over the files (a progress bar may)."""
    if not path.exists():
        raise ToolError(f"{path}: no such file or folder")
    files = shards(path) if path.is_dir() else [path]
    folder = path if path.is_dir() else path.parent
    formats = {format_of(f) for f in files}
    if len(formats) > 1:
        raise ToolError(f"{path}: safetensors and GGUF files together; name one of them")
    checkpoint = Checkpoint(path, formats.pop())
    if checkpoint.format == "safetensors":
        checkpoint.config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    for file in each_file(files):
        read = read_safetensors if checkpoint.format == "safetensors" else read_gguf
        read(file, checkpoint)
    return checkpoint


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ToolError(f"{path}: {first_line(error)}") from error
    if not isinstance(value, dict):
        raise ToolError(f"{path}: not a JSON object")
    return value


def shards(folder: Path) -> list[Path]:
    """The files of a checkpoint folder: those its index names, else all of one kind."""
    for index in sorted(folder.glob("*.safetensors.index.json")):
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise ToolError(f"{index}: no weight_map")
        files = [folder / str(name) for name in sorted(set(weight_map.values()))]
        missing = [f for f in files if not f.is_file()]
        if missing:
            raise ToolError(f"{missing[0]}: named by {index.name}, but missing")
        return files
    for pattern in ("*.safetensors", "*.gguf"):
        files = sorted(folder.glob(pattern))
        if files:
            return files
    raise ToolError(f"{folder}: no safetensors or GGUF file in it")


def format_of(path: Path) -> str:
    if not path.is_file():
        raise ToolError(f"{path}: not a file")
    try:
        with path.open("rb") as file:
            start = file.read(16)
    except OSError as error:
        raise ToolError(f"{path}: {first_line(error)}") from error
    if start[:4] == b"GGUF":
        return "GGUF"
    # A length of 8 bytes, then a JSON object.
    if path.suffix == ".safetensors" or start[8:9] == b"{":
        return "safetensors"
    raise ToolError(f"{path}: neither a safetensors nor a GGUF file")


def read_safetensors(path: Path, checkpoint: Checkpoint) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        file: Any = safe_open(path, "np")

        def load(name: str) -> Array:
            try:
                return np.asarray(file.get_tensor(name)).astype(np.float64)
            except (SafetensorError, TypeError, ValueError) as error:
                raise ToolError(f"{path}: {name}: {first_line(error)}") from error

        for name in file.keys():  # noqa: SIM118 (not a dict)
            view = file.get_slice(name)
            tensor = Tensor(name, tuple(view.get_shape()), str(view.get_dtype()), partial(load, name))
            checkpoint.tensors.append(tensor)
    except (SafetensorError, OSError) as error:
        raise ToolError(f"{path}: {first_line(error)}") from error


def read_gguf(path: Path, checkpoint: Checkpoint) -> None:
    from gguf import GGUFReader
    from gguf.quants import dequantize

    try:
        reader = GGUFReader(path)
        for key, value in reader.fields.items():
            if key == "general.architecture" or key.endswith(("_epsilon", "norm_groups")):
                checkpoint.keys[key] = value.contents()
        for tensor in reader.tensors:
            # GGUF lists the fastest axis first.
            shape = tuple(int(d) for d in reversed(tensor.shape))

            def load(tensor: Any = tensor, shape: tuple[int, ...] = shape) -> Array:
                return dequantize(tensor.data, tensor.tensor_type).astype(np.float64).reshape(shape)

            checkpoint.tensors.append(Tensor(str(tensor.name), shape, tensor.tensor_type.name, load))
    except (ValueError, IndexError, KeyError, OSError, OverflowError, UnicodeDecodeError) as error:
        raise ToolError(f"{path}: not a readable GGUF file: {first_line(error)}") from error
