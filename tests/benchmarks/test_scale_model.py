"""The model of the page on scale: it counts what travels, and finds constants it was given."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from corten.lowrank import TensorTrain

PATH = Path(__file__).parents[2] / "benchmarks" / "scale_model.py"
if not PATH.exists():
    pytest.skip("the benchmarks are not here", allow_module_level=True)
spec = importlib.util.spec_from_file_location("scale_model", PATH)
model = importlib.util.module_from_spec(spec)
sys.modules["scale_model"] = model
spec.loader.exec_module(model)


@pytest.mark.parametrize("shape", [(30, 20, 10), (12, 11), (7, 6, 5, 4)])
def test_what_travels_is_as_large_as_the_cores(shape):
    frame = TensorTrain.random(shape, 2, seed=0).frame()
    sent = sum(core.nbytes for core in (*frame.left, *frame.right))
    back = sum(core.nbytes for core in frame.left)
    first = sum(core.nbytes for core in (frame.left[0], frame.right[0], frame.left[0]))
    assert 8 * 3 * model.numbers(shape, 2) == sent + back
    assert model.traffic(shape, 2, workers=4) == 4 * (sent + back) - 3 * first  # rows of the first core go to one each
    assert model.traffic(shape, 2, workers=1) == 0


def test_known_constants_are_found_again_and_errors_are_shown():
    truth = model.Speed(overhead=2e-3, entry=1.5, bond=0.4, between=3e-3, factor=1.4)
    points = []
    for side, rank in ((100, 3), (200, 8), (200, 16), (300, 3), (400, 3)):
        seconds = truth.one_pass((side,) * 3, rank, 2)
        points.append({"what": "pass", "shape": [side] * 3, "rank": rank, "cores": 2, "seconds": seconds})
    for side in (100, 300, 400):
        seconds = truth.fit((side,) * 3, 3, 2, 20)
        points.append({"what": "fit", "shape": [side] * 3, "rank": 3, "cores": 2, "seconds": seconds, "passes": 20})
    found = model.calibrate(points)
    np.testing.assert_allclose(list(vars(found).values()), list(vars(truth).values()), rtol=1e-6)
    assert sum("+0%" in line or "-0%" in line for line in model.checked(points, found)) == 2
    points[-1]["seconds"] *= 2
    assert "-50%" in model.checked(points, found)[-1]


def test_more_workers_are_quicker_until_the_scheduler_is_the_limit():
    speed = model.Speed(1e-3, 1.5, 0.4, 2e-3, 1.3)
    shape = (10_000, 10_000, 10_000)
    times = [speed.one_pass(shape, 5, w * 32, bandwidth=1e9, workers=w) for w in (8, 32, 128, 4096)]
    assert times[0] > times[1] > times[2] and times[3] > times[2]
