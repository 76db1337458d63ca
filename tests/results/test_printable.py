"""Labels come from files, perhaps a stranger's: nothing that shows them lets them steer a terminal or a page."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import xarray as xr

import corten
from corten.data.choices import Choice

LABEL = "ev\x1b]0;owned\x07il<script>alert(1)</script>\u202e"
STEERING = set("\x1b\x07\u202e")


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    x = np.where(rng.random((5, 6, 7)) < 0.3, np.nan, rng.normal(size=(5, 6, 7)))
    x[2] = np.nan
    names = {LABEL: [f"{LABEL}{k}" for k in range(5)]}
    data = xr.DataArray(x, names, (LABEL, "b", "c"), LABEL, {"units": LABEL, "long_name": LABEL})
    return corten.ConformalCompleter("smooth", "uniform", "random").fit(data)


def test_what_is_printed_shows_labels_and_does_not_obey_them(fitted):
    result, audit = fitted.intervals(0.8), fitted.audit(2)
    shown = {
        "summary": str(result.summary()), "its repr": repr(result.summary()), "intervals": repr(result),
        "fit": repr(fitted), "weights": str(fitted.weights.report()), "observed": repr(fitted.observed),
        "audit": str(audit), "choices": " ".join(map(str, fitted.choices)), "choice": str(Choice(LABEL, "a", "b")),
    }  # fmt: skip
    assert not [name for name, text in shown.items() if STEERING & set(text)]
    for name in ("summary", "weights", "observed", "choice"):
        assert "\\x1b]0;owned\\x07" in shown[name], name


def test_notebooks_show_labels_and_do_not_obey_them(fitted):
    for shown in (fitted, fitted.intervals(0.8), fitted.weights.report(), fitted.audit(2)):
        page = shown._repr_html_()
        assert not STEERING & set(page) and "<script" not in page


def test_where_an_error_arose_is_shown_without_obeying_the_file(tmp_path):
    np.savez(tmp_path / "x.npz", **{LABEL.replace("/", ""): np.eye(3)})
    asked = ["--debug", "complete", str(tmp_path / "x.npz"), "--variable", "nope", "-o", str(tmp_path / "y.nc")]
    done = subprocess.run([sys.executable, "-m", "corten.cli.app", *asked], capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" in done.stderr and "\\x1b]0;owned\\x07" in done.stderr
    assert not STEERING & set(done.stderr)
