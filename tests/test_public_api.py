"""The public names are a promise, and importing corten is quick."""

import inspect
import re
import subprocess
import sys

import numpy as np

import corten
from corten.results.fitted import _INTERNAL

NAMES = [
    "AdaptiveCoverage",
    "AdditivePropensity",
    "AutoPropensity",
    "BernoulliPropensity",
    "CPCompletion",
    "Checkpoint",
    "ConformalCompleter",
    "CrossCalibration",
    "Fitted",
    "GapCalibration",
    "GaussianProcessCompletion",
    "Intervals",
    "IsingPropensity",
    "KnownPropensity",
    "Linear",
    "ObservedTensor",
    "Polynomial",
    "Product",
    "ScoreLog",
    "SplitCalibration",
    "RepeatedSplits",
    "Sigmoid",
    "SmoothCompletion",
    "StackedCompletion",
    "TensorTrainCompletion",
    "TuckerCompletion",
    "UniformPropensity",
    "Zero",
    "__version__",
    "complete",
    "complete_table",
    "complete_lazily",
    "complete_to_zarr",
    "conformal",
    "io",
    "load",
    "lowrank",
    "metrics",
    "propensity",
    "simulate",
    "sklearn",
    "xarray",
]

SLOW = ("numba", "xarray", "pandas", "matplotlib", "sklearn", "scipy", "jax", "dask", "rich", "typer")


def loaded_after(code):
    """Which of the slow libraries a fresh interpreter holds after running code."""
    check = f"{code}; import sys; print(*[name for name in {SLOW!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_public_names_are_frozen():
    assert sorted(corten.__all__) == sorted(NAMES) == dir(corten)


def test_every_public_name_is_there():
    for name in NAMES:
        assert getattr(corten, name) is not None
        assert name.startswith("__") or getattr(corten, name).__doc__, name


def test_importing_corten_loads_nothing_slow():
    assert loaded_after("import corten") == set()


def test_help_loads_nothing_slow():
    assert loaded_after("import corten.cli.app") <= {"rich", "typer"}


def test_a_fit_of_arrays_needs_no_labels_or_figures():
    assert not loaded_after("import corten; corten.ConformalCompleter()") & {"xarray", "pandas", "matplotlib", "jax"}


def test_unknown_names_are_refused():
    try:
        corten.Intervalls  # noqa: B018
    except AttributeError as problem:
        assert "Intervalls" in str(problem)
    else:
        raise AssertionError("a name that is not there was found")


def documented(thing):
    """The names in the Parameters and Attributes sections of a numpydoc docstring."""
    text = inspect.getdoc(thing) or ""
    section = re.compile(r"^(?:Parameters|Attributes)\n-+\n(.*?)(?=^\w[^\n]*\n-+\n|\Z)", re.DOTALL | re.MULTILINE)
    sections = section.findall(text)
    headers = re.findall(r"^(\S.*)$", "".join(sections), re.MULTILINE)
    return {name.strip(" *") for header in headers for name in header.partition(" : ")[0].split(",")}


def test_every_parameter_of_a_public_name_is_documented():
    things = [getattr(corten, name) for name in NAMES if name.isidentifier() and name not in ("__version__", "Fitted")]
    things = [thing for thing in things if callable(thing)]
    for owner in (corten.ConformalCompleter, corten.Fitted, corten.Intervals):
        shown = [name for name in dir(owner) if not name.startswith("_") and name not in (*_INTERNAL, "widths_at")]
        things += [getattr(owner, name) for name in shown if inspect.isfunction(getattr(owner, name))]
    own = {"self", "fitted", "result"}
    missing = {
        thing.__qualname__: sorted(set(inspect.signature(thing).parameters) - own - documented(thing))
        for thing in things
    }
    assert {name: left for name, left in missing.items() if left} == {}


def test_options_have_literal_types():
    """Strings a user may give are listed by editors; `Any` says nothing."""
    for function in (corten.complete, corten.ConformalCompleter):
        types = {name: str(one.annotation) for name, one in inspect.signature(function).parameters.items()}
        assert [name for name, annotation in types.items() if "Any" in annotation] == []
        assert [name for name, annotation in types.items() if annotation == "str"] == []


def test_dir_of_a_result_has_no_internals():
    x = np.add.outer(np.arange(6.0), np.arange(7.0) ** 2)
    x[2, 3] = np.nan
    fitted = corten.ConformalCompleter("smooth", "constant", "random").fit(x)
    for thing in (fitted, fitted.intervals(0.5)):
        shown = [name for name in dir(thing) if not name.startswith("__") and name != "_repr_html_"]
        assert [name for name in shown if name.startswith("_") or name.endswith("_array")] == []
        assert len(shown) < 30 and {"choices", "estimate", "observed"} <= set(shown)
