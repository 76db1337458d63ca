"""Properties of what a fit answers: transforms, bounds, whole numbers, audits, checkpoints, and stores from disk."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import corten
from corten.large import needs
from strategies import INTEGERS, Gappy, costly, gappy, levels, seeds, values
from test_properties_complete import completers, ends, fit

SMOOTH = corten.ConformalCompleter("smooth", "uniform", "random", seed=1)


@costly(4)
@given(gappy(), completers(("smooth", "tucker", "process"), ("random", "gaps")), levels)
def test_a_log_is_undone_exactly_and_bounds_only_cut(case, completer, level):
    """Completing logarithms by hand is the same, and bounds are those answers cut off at them.

    Not of merged splits: the mean of their estimates is taken in the unit of the data.
    """
    completer = replace(completer, transform=None, climatology=None)
    case.kinds = dict.fromkeys(range(case.x.ndim), "ordered") | case.kinds  # else told by the values
    positive = np.exp(np.clip(case.x, -20, 20))
    by_hand = ends(fit(completer, np.log(positive), case).intervals(level))
    logged = replace(completer, transform="log")
    undone = ends(fit(logged, positive, case).intervals(level))
    missing = ~case.mask
    for one, other in zip(by_hand, undone):
        with np.errstate(over="ignore"):
            np.testing.assert_allclose(other[missing], np.exp(one[missing]), rtol=1e-12)
    low, high = np.quantile(positive[case.mask], [0.3, 0.8])
    assume(low < high)
    cut = ends(fit(replace(logged, bounds=(low, high)), positive, case).intervals(level))
    for one, other in zip(undone, cut):
        np.testing.assert_array_equal(other[missing], np.clip(one[missing], low, high))


@costly(4)
@given(gappy(), completers(bounded=True), st.sampled_from(INTEGERS), seeds)
def test_whole_numbers_are_completed_as_the_same_doubles(case, completer, dtype, seed):
    """Integers and booleans have no NaN: they come as masked arrays, and are answered so."""
    whole = np.random.default_rng(seed).integers(0, 2 if dtype == "?" else 100, case.shape).astype(dtype)
    covered = np.ma.MaskedArray(whole, mask=~case.mask)
    found = fit(completer, covered, case).intervals(0.8)
    plain = fit(completer, np.where(case.mask, whole.astype(float), np.nan), case).intervals(0.8)
    for one, other in zip((found.estimate, found.lower, found.upper), ends(plain)):
        assert isinstance(one, np.ma.MaskedArray) and one.dtype == np.float64
        np.testing.assert_array_equal(np.ma.getdata(one), other)
    np.testing.assert_array_equal(np.ma.getdata(found.estimate)[case.mask], whole[case.mask].astype(float))


@costly(4)
@given(gappy(), completers(bounded=True), st.lists(levels, min_size=2, max_size=3))
def test_every_coverage_of_a_fit_comes_from_the_one_fit(case, completer, asked):
    fitted = fit(completer, case.x, case)
    first = fitted.intervals(asked[0])
    assert isinstance(fitted, corten.Fitted) and isinstance(first, corten.Intervals)
    facts, chances = fitted.facts(asked[0]), fitted.probabilities
    assert facts["calibration_entries"] == len(fitted.scores)
    assert 0 < facts["effective_sample_size"] <= len(fitted.scores) * (1 + 1e-9)
    assert chances.shape == case.shape and ((chances >= 0) & (chances <= 1)).all()
    assert fitted.settings()["seed"] == completer.seed and fitted.settings()["axes"].count("axis_") == case.x.ndim
    assert all(sentence.endswith(".") for sentence in fitted.warnings())
    few, many = (fitted.hidden_coverage(level) for level in (min(asked), max(asked)))
    assert (few is None) == (len(fitted.scores) < 20) and (few is None or 0 <= few.found <= many.found <= 1)
    for level in asked:
        one, other = first.at(level), fitted.intervals(level)
        assert one.coverage == level
        for a, b in zip(ends(one), ends(other)):
            np.testing.assert_array_equal(a, b)
        lower, upper = fitted.bounds(level)
        missing = fitted.observed.missing
        np.testing.assert_array_equal(other.lower_array[missing], lower[missing])
        np.testing.assert_array_equal(other.upper_array[missing], upper[missing])
        infinite = ~np.isfinite(other.width_array)
        np.testing.assert_array_equal(other.flag_array == 0, case.mask)
        np.testing.assert_array_equal(other.flag_array == 2, infinite)
        summary = other.summary()
        assert (summary.observed, summary.missing) == (case.mask.sum(), missing.sum())
        assert summary.infinite == infinite.sum() and summary.coverage == level
        stored = other.to_dataset()
        np.testing.assert_array_equal(stored["value_upper"].values, other.upper_array)
        assert json.loads(stored.attrs["corten_settings"])["seed"] == completer.seed


@costly(4)
@given(gappy(), completers(), st.integers(0, 3))
def test_an_audit_counts_what_it_says_and_repeats(case, completer, seed):
    fitted = fit(completer, case.x, case)
    options: dict[str, Any] = {"seed": seed, "levels": (0.5, 0.9), "reference": corten.IsingPropensity(0.1, rank=1)}
    try:
        audit = fitted.audit(2, **options)
    except ValueError as refused:
        assume("hide" not in str(refused) and "observed" not in str(refused))
        raise
    shares = [audit.coverage(level) for level in (0.5, 0.9)]
    assert all(0 <= share <= 1 for share in shares) and shares[0] <= shares[1]
    assert str(audit) == str(fitted.audit(2, **options))
    for one in audit.samples:  # only what was observed can be hidden
        assert case.mask.reshape(-1)[one.entries].all()


@costly(4)
@given(gappy(), completers(("smooth", "stack", "tucker")))
def test_a_checkpoint_changes_no_bit_and_finds_its_rounds_again(case, completer):
    plain = ends(fit(completer, case.x, case).intervals(0.8))
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder, "rounds")
        first = corten.Checkpoint(kept)
        once = ends(fit(completer, case.x, case, checkpoint=first).intervals(0.8))
        rounds = len(list(kept.glob("*.round")))
        with corten.Checkpoint(kept) as second:
            again = ends(fit(completer, case.x, case, checkpoint=second).intervals(0.8))
            assert rounds and second.kept >= rounds
        assert not kept.exists()
    for a, b, c in zip(plain, once, again):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)


@st.composite
def planes(draw: Any) -> Gappy:
    """Enough planes and entries that a fit from disk has ranks to find and runs to cut.

    More than 300 observed entries: of fewer, a fixed number trains in memory, and each by itself from disk.
    """
    shape = (draw(st.integers(12, 16)), draw(st.integers(8, 9)), draw(st.integers(8, 9)))
    mask = np.random.default_rng(draw(seeds)).random(shape) < draw(st.sampled_from([0.5, 0.7]))
    mask.reshape(-1)[:2] = True, False
    x = np.where(mask, draw(values(shape)), np.nan)
    return Gappy(x, mask, tuple(k for k in range(3) if draw(st.booleans())))


@pytest.mark.filterwarnings("ignore:All intervals will be infinite")
@costly(4)
@given(
    planes(), st.sampled_from(["absolute", "signed"]), st.sampled_from(["exact", "approximate"]), st.integers(1, 4),
    st.integers(1, 5), st.sampled_from(["f4", "f8"]),
)  # fmt: skip
def test_runs_and_chunks_change_a_store_by_rounding_alone(case, score, weights, run, chunk, dtype):
    """Other runs of planes, chunks and threads: at most 1e-6; against the flow in memory no interval is narrower."""
    zarr = pytest.importorskip("zarr", reason="needs zarr: pip install 'corten[files]'")
    x = np.clip(case.x, -1e3, 1e3).astype(dtype)
    options: dict[str, Any] = {
        "completion": corten.TuckerCompletion(rank=1), "propensity": corten.IsingPropensity(0.1, rank=1),
        "score": score, "weights": weights, "calibration": "random", "periodic": case.periodic,
    }  # fmt: skip
    kinds = dict.fromkeys(range(3), "ordered")
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        one = corten.complete_to_zarr(x, Path(folder, "one.zarr"), 0.8, axis_kinds=kinds, **options)
        source = zarr.create_array(Path(folder, "x.zarr"), shape=x.shape, dtype=dtype, chunks=(chunk, *x.shape[1:]))
        source[...] = x
        patch.setattr(needs, "PIECE_ENTRIES", run * x[0].size)
        two = corten.complete_to_zarr(source, Path(folder, "two.zarr"), 0.8, axis_kinds=kinds, engine=2, **options)
        whole, cut = one.open().load(), two.open().load()
    size = max(1.0, float(np.abs(x[case.mask]).max()))
    np.testing.assert_array_equal(whole.value_flag.values, cut.value_flag.values)
    for name in ("value", "value_lower", "value_upper"):
        np.testing.assert_allclose(cut[name].values, whole[name].values, rtol=1e-6, atol=1e-6 * size)
    memory = corten.complete(x, 0.8, axis_kinds=kinds, **options)
    np.testing.assert_allclose(whole.value.values, memory.estimate_array, rtol=1e-5, atol=1e-5 * size)
    np.testing.assert_array_equal(whole.value_flag.values, memory.flag_array)
    assert (whole.value_upper.values >= memory.upper_array - 1e-4 * size).all()
    assert (whole.value_lower.values <= memory.lower_array + 1e-4 * size).all()


@costly(6)
@given(gappy(orders=(2, 3), most=60), st.sampled_from([0.5, 0.9]))
def test_a_page_holds_what_it_is_about(case, level):
    result = fit(SMOOTH, case.x, case).intervals(level)
    with tempfile.TemporaryDirectory() as folder:
        page = result.report(Path(folder, "page.html")).read_text(encoding="utf-8")
    assert page.count("<html") == 1 and f"{corten.__version__}" in page and "smooth" in page
    assert "https://" not in page.replace("https://www.w3.org", "")
