"""Predicted seconds are those of one processor, multiplied by how fast this one is."""

from __future__ import annotations

import pytest

from corten import options
from corten.calibration.gaps import GapCalibration
from corten.calibration.split import SplitCalibration
from corten.data.axes import Axis
from corten.engine import speed


def test_the_fastest_of_several_repeats_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    lasted = [0.5, 0.2, 0.3, 0.4, 0.6]
    clock = iter([time for number, took in enumerate(lasted) for time in (10.0 * number, 10.0 * number + took)])
    monkeypatch.setattr(speed, "thread_time", lambda: next(clock))
    speed.relative_seconds.cache_clear()
    try:
        assert speed.relative_seconds() == pytest.approx(0.2 / speed.REFERENCE_SECONDS)
        assert next(clock, None) is None
    finally:
        speed.relative_seconds.cache_clear()


def test_a_processor_that_takes_twice_as_long_is_predicted_to_take_twice_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    axes = [Axis("a", 50), Axis("b", 120), Axis("c", 96)]
    larger = [Axis("a", 100), Axis("b", 120), Axis("c", 96)]
    for calibration, on in ((GapCalibration(), axes), (SplitCalibration(), axes), (SplitCalibration(), larger)):
        seconds = []
        for speed_of_processor in (1.0, 2.0):
            monkeypatch.setattr(options, "relative_seconds", lambda factor=speed_of_processor: factor)
            seconds.append(options.predicted_seconds(calibration, on, 100_000, cores=1))
        assert seconds[1] == pytest.approx(2 * seconds[0])
        assert seconds[0] > 0.1
