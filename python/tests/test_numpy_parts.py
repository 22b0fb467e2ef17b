"""Rows split over several owners: moments, merger, apply."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy_reference import BF16, F16, F32, F64, assert_close, draw, reference, same_bits

import truenorm


@pytest.mark.parametrize("kind", ["rms", "l2"])
@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
def test_whole_rows_give_the_bits_of_norm(kind: Any, dtype: Any) -> None:
    x, w = draw((3, 5, 70), dtype), draw(70, F32, 1)
    m = truenorm.moments(x, kind=kind)
    rstd = truenorm.rstd_from_moments(m, kind=kind, eps=1e-3)
    assert m.elements == 70 and m.mean is None and rstd.shape == (3, 5) and rstd.dtype == F64
    assert same_bits(truenorm.norm_apply(x, w, rstd=rstd, kind=kind), truenorm.norm(x, w, kind=kind, eps=1e-3))


@pytest.mark.parametrize("kind", ["rms", "layer", "l2"])
@pytest.mark.parametrize("shift", [0.0, 1000.0])
def test_parts(kind: Any, shift: float) -> None:
    x, w, b = draw((4, 96), F32, 0, 1.0, shift), draw(96, F32, 1), draw(96, F32, 2)
    cuts = [slice(0, 10), slice(10, 64), slice(64, 96)]
    total = truenorm.moments(x[:, cuts[0]], kind=kind)
    for cut in cuts[1:]:
        total = truenorm.merge_moments(total, truenorm.moments(x[:, cut], kind=kind))
    assert total.elements == 96 and (total.mean is None) == (kind != "layer")
    rstd = truenorm.rstd_from_moments(total, kind=kind)
    parts = [truenorm.norm_apply(x[:, c], w[c], b[c], rstd=rstd, mean=total.mean, kind=kind) for c in cuts]
    want = reference(x, w, b, kind=kind)
    # The mean was rounded to float64 once, so a large shift costs some of it.
    assert_close(np.concatenate(parts, -1), want._replace(terms=want.terms * (1 + abs(shift))))


def test_groups_and_eps_modes() -> None:
    x = draw((4, 96))
    m = truenorm.moments(x, group=24)
    assert m.moment2.shape == (4, 4) and m.elements == 24
    for mode in ("inside", "outside", "clamp"):
        options: Any = {"eps": 0.5, "eps_mode": mode, "divisor": 20.0}
        rstd = truenorm.rstd_from_moments(m, **options)
        np.testing.assert_allclose(rstd, truenorm.norm(x, group=24, stats="float64", **options)[2], rtol=1e-15)
        got = truenorm.norm_apply(x, rstd=rstd, group=24)
        assert_close(got, reference(x, group=24, **options))


def test_residual_and_gate() -> None:
    x, r, g, w = (draw((4, 96), BF16, k) for k in range(4))
    m = truenorm.moments(x, residual=r, gate=g)
    want = truenorm.norm(x, w, residual=r, gate=g, eps=1e-6)
    got = truenorm.norm_apply(x, w, residual=r, gate=g, rstd=truenorm.rstd_from_moments(m))
    assert all(same_bits(a, b) for a, b in zip(got, want, strict=True))
    wide = truenorm.moments(x, residual=r, sum_dtype="float32")
    np.testing.assert_allclose(wide.moment2, ((x.astype(F64) + r.astype(F64)) ** 2).sum(-1), rtol=1e-6)


def test_partial() -> None:
    x = draw((4, 96))
    m = truenorm.moments(x, partial=10)
    assert m.elements == 10
    np.testing.assert_allclose(m.moment2, (x[:, :10].astype(F64) ** 2).sum(-1), rtol=1e-15)
