"""The public names are a promise, and importing corten is quick."""

import subprocess
import sys

import corten

NAMES = [
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
