"""Messages that name settings of Python name options on the command line."""

import numpy as np
import pytest
from typer.testing import CliRunner

from corten.cli.app import app
from corten.cli.options import DataOptions, MethodOptions
from corten.cli.spelling import OPTION_SPELLINGS, in_options
from corten.data.printable import printable
from corten.engine.local import as_local_engine


def engine_message():
    with pytest.raises(ValueError) as caught:
        as_local_engine("x")
    return str(caught.value)


@pytest.mark.parametrize(
    ("python", "option"),
    [
        ("fill_never_observed=True fills them", "--fill-never-observed fills them"),
        ("mark by where= what need not be", "mark by --where what need not be"),
        ("use calibration='gaps'.", "use --calibration gaps."),
        ('or propensity="constant")', "or --propensity constant)"),
        ("declare it: missing_value=-9999.0.", "declare it: --missing-value -9999.0."),
        ("such as axes=('lat', 'lon', 'time')", "such as --axes lat,lon,time"),
        ("axis_kinds={'axis_0': 'ordered'} overrides", "--ordered-axis axis_0 overrides"),
        ("give axis_kinds={'id': 'unordered'}", "give --unordered-axis id"),
        ("90 percent is coverage=0.9).", "90 percent is --coverage 0.9)."),
        ("calibration=corten.GapCalibration(rounds=48).", "in Python calibration=corten.GapCalibration(rounds=48)."),
        ("flag filled_beyond_tested (result.beyond_tested). Use", "flag filled_beyond_tested. Use"),
        ("summary(full=True) lists", "--full lists"),
        ('allowed are "tucker", "stack", an object or a function', 'allowed are "tucker", "stack"'),
        ('allowed are "auto", "ising" or an object', 'allowed are "auto", "ising"'),
        (engine_message(), """engine is 'x'; give "auto", "threads", "jax", "gpu", "dask" or a number of threads"""),
        ("quality_flag=0,1 and a=b stay", "quality_flag=0,1 and a=b stay"),
    ],
)
def test_keywords_become_options(python, option):
    assert in_options(python) == option and in_options(option) == option


def test_every_option_that_is_named_exists():
    known = {name.replace("_", "-") for kind in (DataOptions, MethodOptions) for name in kind.__dataclass_fields__}
    of_complete, daily = {"checkpoint", "coverage", "full", "memory", "overwrite"}, {"axis", "label"}
    assert set(OPTION_SPELLINGS.values()) - known == of_complete | daily


def test_the_program_prints_options_and_python_keywords(tmp_path):
    x = np.add.outer(np.sin(np.arange(12.0)), np.cos(np.arange(15.0)))
    x[2:4, 3:5], x[0, 0] = np.nan, 5.0
    np.save(tmp_path / "x.npy", x)
    again = CliRunner().invoke(app, ["complete", str(tmp_path / "x.npy"), "-o", str(tmp_path / "x.npy")])
    assert again.exit_code == 2 and "--overwrite" in again.output and "overwrite=" not in again.output
    target = str(tmp_path / "y.npy")
    many = CliRunner().invoke(app, ["complete", str(tmp_path / "x.npy"), "-o", target, "--coverage", "90"])
    assert "--coverage 0.9" in many.output
    assert printable("overwrite=True") == "overwrite=True"  # outside a command
