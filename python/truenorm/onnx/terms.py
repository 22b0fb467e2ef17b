"""Symbolic values of a graph of primitive operators: what a norm looks like on its way."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .kernels import Array, Dtype, EpsMode, Kind, holds

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Const:
    """A value known without the inputs: constants, shapes, and what was computed from them."""

    array: Array

    @property
    def shape(self) -> Shape:
        return self.array.shape

    @property
    def dtype(self) -> Dtype:
        return self.array.dtype

    def scalar(self) -> float | None:
        return float(self.array.reshape(())) if self.array.size == 1 else None


@dataclass(frozen=True)
class Data:
    """An input (`source` is its name) or a constant, reshaped and cast; `through`: the narrower formats on its way."""

    source: str | Const
    shape: Shape
    dtype: Dtype
    through: tuple[Dtype, ...] = ()

    def cast(self, dtype: Dtype) -> Data:
        through = self.through if holds(dtype, self.dtype) else (*self.through, dtype)
        return replace(self, dtype=dtype, through=through)


@dataclass(frozen=True)
class Square:
    """x^2, or (x - mean)^2."""

    of: Data | Centred
    dtype: Dtype

    @property
    def shape(self) -> Shape:
        return self.of.shape


@dataclass(frozen=True)
class Centred:
    """x - mean(x)."""

    data: Data
    axes: tuple[int, ...]

    @property
    def shape(self) -> Shape:
        return self.data.shape

    @property
    def dtype(self) -> Dtype:
        return self.data.dtype


@dataclass(frozen=True)
class Stat:
    """A statistic of x over axes.

    step: "mean", "mean squared" (the mean's square), "second" (mean of x^2, or the variance), "root" (its square
    root, with eps inside or outside), "inverse" (one over the root).
    """

    step: str
    kind: Kind
    data: Data
    axes: tuple[int, ...]
    shape: Shape
    dtype: Dtype
    eps: float | None = None
    eps_mode: EpsMode = "inside"

    def same_rows(self, data: Data, axes: tuple[int, ...]) -> bool:
        return self.data == data and self.axes == axes

    def is_kept(self) -> bool:
        """Whether it still broadcasts against x (a Reshape may have changed that)."""
        kept = tuple(1 if a in self.axes else d for a, d in enumerate(self.data.shape))
        return self.shape == kept


@dataclass(frozen=True, eq=False)
class Normalised:
    """h, or y once it has a scale or a bias."""

    kind: Kind
    data: Data
    axes: tuple[int, ...]
    eps: float
    eps_mode: EpsMode
    shape: Shape
    dtype: Dtype
    through: tuple[Dtype, ...]
    scale: tuple[Data, Shape] | None = None
    bias: tuple[Data, Shape] | None = None
    done: bool = False

    def cast(self, dtype: Dtype) -> Normalised | None:
        if self.scale is None and self.bias is None:
            return replace(self, dtype=dtype, through=(*self.through, dtype))
        return self if dtype == self.dtype else replace(self, dtype=dtype, done=True)


Term = Const | Data | Square | Centred | Stat | Normalised
