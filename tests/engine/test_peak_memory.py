"""The memory that a fit is predicted to take, against the peak that the system counts.

When the flow changes, run this with `-s` and set the constants of `corten/completer.py` to what it prints.
"""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory as Linux counts it")

WITHIN = 0.3
MEASURE = """
import json
from pathlib import Path
import numpy as np
import corten
from corten.calibration.cross import CrossCalibration

def field(side, share):
    rng = np.random.default_rng(0)
    factors = [rng.normal(size=side) for _ in range(3)]
    x = np.einsum("i,j,k->ijk", *factors)
    x += 0.1 * rng.normal(size=x.shape)
    x[rng.random(x.shape) < share] = np.nan
    return x

def work(x, out):
    calibration = {{"random": "random", "cross": CrossCalibration(3), "gaps": corten.GapCalibration(6)}}[{kind!r}]
    propensity = corten.IsingPropensity(corten.Product(0.1), rank=2)
    completion = "stack" if {kind!r} == "gaps" else corten.TuckerCompletion(2)
    fitted = corten.ConformalCompleter(completion, propensity, calibration).fit(x)
    fitted.intervals(0.9).to_netcdf(out, overwrite=True)
    return [one.taken for one in fitted.choices if one.what == "peak memory"][0]

work(field(12, {share}), {out!r})  # imports and compiles
x = field({side}, {share})

def bytes_of(name):  # of this program: the peak that getrusage gives may be that of the one that started it
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status[name].split()[0]) * 1024

before = bytes_of("VmRSS")
said = work(x, {out!r})
peak = bytes_of("VmHWM") - before
print(json.dumps([said, peak, x.size]))
"""


def check(tmp_path, kind, side, share):
    from corten.engine.memory import read_size

    code = MEASURE.format(kind=kind, side=side, share=share, out=str(tmp_path / "o.nc"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said, peak, size = json.loads(done.stdout)
    predicted = read_size(said.removeprefix("about "))
    print(f"{kind}, {size} entries, {share:.0%} missing: {predicted / size:.0f} predicted, {peak / size:.0f} used")
    assert abs(predicted / peak - 1) < WITHIN, f"{said} predicted, {peak / 1e6:.0f} MB used"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "side", "share"), [("random", 100, 0.6), ("random", 110, 0.3), ("cross", 100, 0.3), ("gaps", 100, 0.3)]
)
def test_the_peak_of_a_fit_is_predicted(tmp_path, kind, side, share):
    check(tmp_path, kind, side, share)
