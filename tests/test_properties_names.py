"""Every public name has a property: it occurs in one of these files, or in the list below with the reason why not."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import corten

HERE = Path(__file__).parent
ROOMS = ("conformal", "io", "lowrank", "evidence.metrics", "propensity", "simulate", "simulate.masks", "engine")
NO_PROPERTY = {
    "Score": "a protocol: its four kinds are tried",
    "Scale": "a protocol: its kinds are tried",
    "Weights": "a protocol: its kinds are tried",
    "Calibrated": "a protocol: what a calibration returns",
    "PropensityModel": "a protocol: its kinds are tried",
    "IntervalsLike": "a protocol: what the metrics are given is one",
    "SplitCalibration": "a container of one share: calibration='random'",
    "SmoothCompletion": "the class behind completion='smooth'",
    "GaussianProcessCompletion": "the class behind completion='gaussian-process'",
    "StackedCompletion": "the class behind completion='stack'",
    "AdditivePropensity": "the class behind propensity='additive'",
    "complete_lazily": "needs Dask arrays of many tiles: tests/large/test_tiles.py compares it with the store",
    "AutoPropensity": "the class behind propensity='auto'",
}


def public() -> list[str]:
    names = list(corten.__all__)
    for room in ROOMS:
        names += importlib.import_module(f"corten.{room}").__all__
    return sorted(set(names))


@pytest.fixture(scope="module")
def properties() -> str:
    files = [one for one in HERE.rglob("test_properties_*.py") if one.name != Path(__file__).name]
    return "\n".join(one.read_text() for one in (*files, HERE / "strategies.py"))


def test_every_public_name_has_a_property(properties):
    absent = [name for name in public() if not re.search(rf"\b{name}\b", properties) and name not in NO_PROPERTY]
    assert not absent, f"no property tries {', '.join(absent)}"


def test_the_exceptions_are_public_and_needed(properties):
    assert set(NO_PROPERTY) <= set(public())
    assert not [name for name in NO_PROPERTY if re.search(rf"\b{name}\b", properties)]


@pytest.mark.parametrize("name", ["Fitted", "Intervals", "ConformalCompleter"])
def test_every_public_method_of_a_result_has_a_property(properties, name):
    kind = getattr(corten, name)
    inside = {"of", "plot", "widths_at"}  # how a fit is made; figures have tests of their own
    methods = [name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name, None))]
    absent = [name for name in methods if not re.search(rf"\.{name}\(", properties) and name not in inside]
    assert not absent, f"no property calls {', '.join(absent)}"
