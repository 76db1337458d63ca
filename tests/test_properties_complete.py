"""Properties of the whole flow: `complete`, `complete_table`, `ConformalCompleter`, saved fits, whatever the tensor."""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import corten
from strategies import DTYPES, LAYOUTS, Gappy, costly, gappy, laid_out, levels

SCALES = (1e-30, 1e-20, 1e-5, 1.0, 1e5, 1e20, 1e30)
COMPLETIONS: dict[str, Any] = {
    "tucker": corten.TuckerCompletion(rank=1),
    "train": corten.TensorTrainCompletion(rank=1),
    "smooth": "smooth",
    "process": "gaussian-process",
    "stack": "stack",
}
if find_spec("tensorly"):
    COMPLETIONS["cp"] = corten.CPCompletion(rank=1, max_iterations=10)
PROPENSITIES = {
    "ising": corten.IsingPropensity(0.1, rank=1),
    "bernoulli": corten.BernoulliPropensity(rank=1),
    "uniform": "uniform",
}
CALIBRATIONS = {
    "random": "random",
    "gaps": corten.GapCalibration(rounds=2),
    "cross": corten.CrossCalibration(folds=2),
    "splits": corten.RepeatedSplits(splits=2),
}


@st.composite
def completers(
    draw: Any, completions: Any = tuple(COMPLETIONS), calibrations: Any = tuple(CALIBRATIONS), bounded: bool = False
) -> Any:
    """Any mix of options; bounds, which are in the unit of the data, only where asked for."""
    completion = draw(st.sampled_from(completions))
    calibration = draw(st.sampled_from(calibrations))
    scores = ["absolute", "signed", "adaptive"]
    if completion in ("tucker", "train", "cp") and calibration != "gaps":
        scores.append("normalized")
    return corten.ConformalCompleter(
        completion=COMPLETIONS[completion],
        propensity=PROPENSITIES[draw(st.sampled_from(sorted(PROPENSITIES)))],
        calibration=CALIBRATIONS[calibration],
        score=draw(st.sampled_from(scores)),
        weights=draw(st.sampled_from(["exact", "approximate"])),
        seed=draw(st.integers(0, 3)),
        transform=draw(st.sampled_from([None, None, "standardise", "standardise:axis_1"])),
        climatology=draw(st.sampled_from([None, None, "axis_0"])),
        bounds=draw(st.sampled_from([None, (-1.0, None), (None, 1.5), (-0.5, 2.0)])) if bounded else None,
    )


def fit(completer: Any, x: np.ndarray, case: Gappy, **options: Any) -> corten.Fitted:
    try:
        return completer.fit(x, periodic=case.periodic, axis_kinds=case.kinds, **options)
    except ValueError as refused:
        # Three refusals are right: a fill of zeros knows no leverage, a dozen entries may all fall into training, and
        # least squares of a CP may have no answer.
        right = ("use score='absolute'", "cannot be split", "lower the rank")
        assume(not any(words in str(refused) for words in right))
        raise


def ends(result: corten.Intervals) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.asarray(result.estimate), np.asarray(result.lower), np.asarray(result.upper)


@costly(4)
@given(
    gappy(), completers(bounded=True), st.sampled_from(SCALES), st.sampled_from(DTYPES),
    st.lists(levels, min_size=2, max_size=3),
)  # fmt: skip
def test_any_tensor_is_filled_with_nested_intervals(case, completer, scale, dtype, asked):
    scale = scale if "2" not in dtype else 1.0
    x = (np.clip(case.x, -1e3, 1e3) * scale).astype(dtype)
    fitted = fit(completer, x, case)
    before = None
    for result in fitted.intervals(sorted(asked)):
        estimate, lower, upper = ends(result)
        assert estimate.shape == lower.shape == upper.shape == case.shape
        assert estimate.dtype == lower.dtype == (np.float64 if "8" in dtype else np.float32)
        assert np.isfinite(estimate).all() and not np.isnan(lower).any() and not np.isnan(upper).any()
        for array in (estimate, lower, upper):
            np.testing.assert_array_equal(array[case.mask], x[case.mask])
        assert (lower <= upper).all()
        if before is not None:
            assert (lower <= before[0]).all() and (upper >= before[1]).all()
        before = lower, upper
        text = str(result.summary())
        assert "nan" not in text.lower()


@costly(4)
@given(gappy(), completers(), st.integers(-100, 100), levels)
def test_scaled_data_have_scaled_intervals(case, completer, power, level):
    """By a power of two, which no rounding disturbs: not a bit changes."""
    unit = 2.0**power
    plain = ends(fit(completer, case.x, case).intervals(level))
    scaled = ends(fit(completer, case.x * unit, case).intervals(level))
    for one, other in zip(plain, scaled):
        np.testing.assert_allclose(other / unit, one, rtol=1e-9, atol=1e-9 * spread(case))


@costly(4)
@given(gappy(), completers(calibrations=("random", "gaps")), levels)
def test_large_single_precision_numbers_are_completed_as_small_ones(case, completer, level):
    """At 1e30, though no square of them is a single-precision number; a fill far outside of the data still is one."""
    unit = np.float32(2.0**100)
    x = np.clip(case.x, -2, 2).astype(np.float32)
    plain = ends(fit(completer, x, case).intervals(level))
    large = ends(fit(completer, x * unit, case).intervals(level))
    for one, other in zip(plain, large):
        fits = np.abs(one) < 1e8  # an end beyond 3.4e38 is infinite, and that is outwards
        np.testing.assert_allclose(other[fits] / unit, one[fits], rtol=1e-3, atol=1e-3)


@costly(4)
@given(gappy(), completers(), st.sampled_from([-7.0, 0.125, 3.0, 100.0]), levels)
def test_shifted_data_have_shifted_intervals(case, completer, shift, level):
    plain = ends(fit(completer, case.x, case).intervals(level))
    moved = ends(fit(completer, case.x + shift, case).intervals(level))
    for one, other in zip(plain, moved):
        np.testing.assert_allclose(other - shift, one, rtol=1e-3, atol=1e-3 * spread(case))


def spread(case: Gappy) -> float:
    known = case.x[case.mask]
    return float(known.max() - known.min()) or 1.0


@costly(4)
@given(gappy(), completers(bounded=True), levels)
def test_threads_and_a_saved_file_change_no_bit(case, completer, level):
    from dataclasses import replace

    fitted = fit(completer, case.x, case)
    result = ends(fitted.intervals(level))
    other = ends(fit(replace(completer, engine=3), case.x, case).intervals(level))
    with tempfile.TemporaryDirectory() as folder:
        loaded = corten.load(fitted.save(Path(folder, "fit.corten")))
    again = ends(loaded.intervals(level))
    for one, two, three in zip(result, other, again):
        np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(one, three)


@costly(4)
@given(gappy(), completers(bounded=True), st.sampled_from(LAYOUTS), st.booleans())
def test_memory_layout_and_byte_order_change_no_bit(case, completer, layout, swapped):
    plain = fit(completer, case.x, case).intervals(0.8)
    given_array = laid_out(case.x.astype(">f8") if swapped else case.x, layout)
    for one, two in zip(ends(plain), ends(fit(completer, given_array, case).intervals(0.8))):
        np.testing.assert_array_equal(one, two)


@costly(4)
@given(gappy(), completers(), st.sampled_from([0.6, 0.8]), st.floats(0.05, 0.95))
def test_other_promises_of_a_fit_hang_together(case, completer, level, share):
    fitted = fit(completer, case.x, case)
    result = fitted.intervals(level)
    missing = result.observed.missing
    _, lower, upper = ends(result)
    wider = ends(fitted.intervals(level, odds_error=1.5))
    rounding = 1e-12 * spread(case)  # ends of merged splits are looked for, and go through a transform
    assert (wider[1] <= lower + rounding).all() and (wider[2] >= upper - rounding).all()
    low, high = np.asarray(result.quantile(share / 2)), np.asarray(result.quantile(1 - share / 2))
    assert (low[missing] <= high[missing]).all()
    drawn = result.draws(2, seed=1)
    assert drawn.shape == (2, *case.shape) and np.isfinite(drawn).all()
    np.testing.assert_array_equal(drawn[:, case.mask], np.broadcast_to(case.x[case.mask], (2, case.mask.sum())))
    apart = np.abs(drawn[0] - np.asarray(result.quantile(0.5), float))[missing].mean()
    assert corten.metrics.crps(drawn[0], result, levels=1) == pytest.approx(apart), "one level is the median"
    everything, nothing = result.exceedance(-1e9), result.exceedance(1e9)
    assert not np.asarray(nothing).any() and not np.asarray(everything)[case.mask].any()
    table = result.to_dataframe()
    assert len(table) == case.x.size and set(table["flag"]) <= {0, 1, 2, 3}


@costly(4)
@given(gappy(orders=(2, 4), most=60), completers(completions=("smooth", "tucker")), st.integers(0, 2**16))
def test_a_table_is_completed_as_its_tensor(case, completer, seed):
    import pandas as pd

    names = [f"axis_{k}" for k in range(case.x.ndim)]
    frame = pd.DataFrame(np.argwhere(np.ones(case.shape, bool)), columns=names)
    frame["value"] = case.x.reshape(-1)
    turn = np.random.default_rng(seed).permutation(len(frame))
    filled = corten.complete_table(frame.iloc[turn], 0.8, completer=completer)
    estimate, lower, upper = ends(completer.fit(case.x).intervals(0.8))
    back = filled.iloc[np.argsort(turn)]
    for name, array in (("estimate", estimate), ("lower", lower), ("upper", upper)):
        np.testing.assert_array_equal(back[name].to_numpy(), array.reshape(-1))


@pytest.mark.filterwarnings("ignore:All intervals will be infinite")
@costly(4)
@given(gappy(), st.integers(0, 5), levels)
def test_own_functions_and_known_odds_serve_too(case, seed, level):
    rng = np.random.default_rng(seed)
    known = corten.KnownPropensity(rng.normal(size=case.shape) * 100, coupling=corten.Sigmoid())
    result = corten.complete(
        case.x, level, completion=lambda x: np.nan_to_num(x, nan=float(np.nanmean(x))), propensity=known,
        calibration="random", seed=seed, periodic=case.periodic, axis_kinds=case.kinds,
    )  # fmt: skip
    estimate, lower, upper = ends(result)
    assert (lower <= estimate).all() and (estimate <= upper).all()
    assert len(np.unique(estimate[~case.mask])) == 1


@given(st.integers(2, 5), st.integers(1, 4), st.sampled_from(["random", "gaps", "cross"]))
def test_too_little_to_learn_from_is_said(order, length, calibration):
    x = np.full((length,) * order, np.nan)
    x.reshape(-1)[0] = 1.0
    if x.size == 1:
        assert corten.complete(x).observed.complete
        return
    with pytest.raises(ValueError, match="observed entr"):
        corten.complete(x, calibration=calibration)


def test_cp_fills_constant_data_and_says_where_it_has_no_answer():
    """Found by the properties above: both ended in a LinAlgError, or in NaN, of the library below."""
    pytest.importorskip("tensorly", reason="needs tensorly: pip install 'corten[peers]'")
    options = {"completion": corten.CPCompletion(2), "propensity": "uniform", "calibration": "random"}
    x = np.full((3, 4, 5), 2.5)
    x[0, 1, 2] = np.nan
    assert corten.complete(x, 0.5, **options).estimate[0, 1, 2] == 2.5
    long = np.arange(60.0).reshape(1, 60)
    long[0, 7] = np.nan
    with pytest.raises(ValueError, match="lower the rank"):
        corten.complete(long, 0.5, **options)
