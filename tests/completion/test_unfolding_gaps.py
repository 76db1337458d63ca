"""The settings of the low-rank member are compared on one pseudo-gap of a map and on several of stations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from corten.completion import unfoldings
from corten.completion.unfoldings import GAPS_OF_STATIONS, UnfoldingCompletion
from corten.data.axes import Axis


@pytest.mark.parametrize(("kind", "gaps"), [("ordered", 1), ("unordered", GAPS_OF_STATIONS)])
def test_errors_of_all_gaps_are_added(kind: Any, gaps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    values, mask = rng.normal(size=(16, 40)), rng.random((16, 40)) < 0.7
    seen: list[np.ndarray] = []

    def errors_of(_: Any, values: np.ndarray, known: np.ndarray, hidden: np.ndarray, *__: Any, **settings: Any) -> Any:
        assert not (known & hidden).any() and ((known | hidden) == mask).all()
        seen.append(hidden)
        # The first gap alone prefers the mean; over all gaps the lowest value is better.
        better = 0.9 if len(seen) == 1 else 1.3
        return {(o, n): better if o == "mean" else 1.0 for o in settings["origins"] for n in settings["numbers"]}

    axes = [Axis("place", 16, kind=kind), Axis("time", 40)]
    monkeypatch.setattr(unfoldings, "held_out_errors", errors_of)
    prepared = UnfoldingCompletion().prepare(values, mask, axes, seed=0)
    assert len(seen) == gaps
    assert prepared.origin == ("mean" if gaps == 1 else "lowest")
    assert len({one.tobytes() for one in seen}) == gaps, "every gap is another one"
