"""Properties of what stands around the flow: input in any type and layout, transforms, metrics, simulation, tables."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import corten
from corten import simulate
from corten.data.observed import ObservedTensor
from corten.data.transform import as_transform
from corten.evidence import metrics
from corten.simulate import masks as mask_module
from strategies import DTYPES, INTEGERS, LAYOUTS, gappy, laid_out, levels, masks, seeds, shapes, values

scales = st.sampled_from([1e-30, 1e-10, 1.0, 1e10, 1e30])


@given(shapes(), st.sampled_from(DTYPES), st.sampled_from(LAYOUTS), st.data())
def test_any_float_type_and_layout_is_read_alike(shape, dtype, layout, data):
    mask = data.draw(masks(shape))
    clean = np.where(mask, data.draw(values(shape)).clip(-1e4, 1e4), np.nan).astype(dtype)
    given_array = laid_out(clean, layout)
    before = given_array.copy()
    tensor = ObservedTensor.of(given_array)
    np.testing.assert_array_equal(given_array, before)
    assert tensor.values.dtype == (np.float64 if "8" in dtype else np.float32)
    assert tensor.values.flags.c_contiguous and not tensor.values.flags.writeable
    np.testing.assert_array_equal(tensor.values, clean.astype(np.float64))
    np.testing.assert_array_equal(tensor.mask, mask)
    assert tensor.n_observed + tensor.n_missing == clean.size
    covered = np.ma.MaskedArray(np.where(mask, clean, 1), mask=~mask)
    np.testing.assert_array_equal(ObservedTensor.of(covered).values, tensor.values)


@given(shapes(), st.sampled_from(INTEGERS), st.sampled_from(LAYOUTS), seeds)
def test_whole_numbers_are_answered_in_double(shape, dtype, layout, seed):
    whole = np.random.default_rng(seed).integers(0, 2, shape).astype(dtype)
    tensor = ObservedTensor.of(laid_out(whole, layout))
    assert tensor.values.dtype == np.float64 and tensor.complete
    np.testing.assert_array_equal(tensor.values, whole.astype(float))


@given(gappy(), st.integers(-300, 300))
def test_sizes_beyond_what_can_be_squared_are_refused(case, power):
    x = np.where(case.mask, np.sign(case.x) + 2.0, np.nan) * 10.0**power
    if -98 < power < 98:
        assert ObservedTensor.of(x).n_observed == case.mask.sum()
    elif abs(power) > 101:
        with pytest.raises(ValueError, match="another unit"):
            ObservedTensor.of(x)


@given(gappy(), st.data())
def test_the_domain_splits_the_tensor_in_three(case, data):
    where = data.draw(masks(case.shape))
    assume((where & case.mask).any())
    tensor = ObservedTensor.of(case.x, where, periodic=case.periodic, axis_kinds=case.kinds)
    assert (tensor.mask.astype(int) + tensor.missing + ~tensor.inside == 1).all()
    wrapped = tensor.wrap(tensor.values)
    assert wrapped.shape == case.shape and not (tensor.forecast & ~tensor.missing).any()
    for name, index in tensor.empty_slices():
        assert not np.take(tensor.mask, index, axis=tensor.axis(name)).any()


@given(gappy(), scales, st.sampled_from(["log", "box-cox", "standardise", "standardise:axis_1"]))
def test_transforms_are_increasing_and_undone(case, scale, name):
    positive = (np.abs(np.nan_to_num(case.x)).clip(0, 1e6) + 1.0) * scale
    tensor = ObservedTensor.of(np.where(case.mask, positive, np.nan))
    made = as_transform(name).fit(tensor.values, tensor.mask, tensor.axes)
    there = made.forward(positive)
    assert np.isfinite(there).all()
    np.testing.assert_allclose(made.backward(there), positive, rtol=1e-6)
    higher = made.forward(positive * 1.5)
    assert (higher > there).all()


@st.composite
def intervals(draw: Any) -> tuple[np.ndarray, Any]:
    """A truth and intervals around something else; some infinite, some truths unknown."""
    shape = draw(shapes())
    rng = np.random.default_rng(draw(seeds))
    truth, middle, half = rng.normal(size=shape), rng.normal(size=shape), rng.exponential(size=shape)
    half[rng.random(shape) < 0.1] = np.inf
    truth[rng.random(shape) < 0.1] = np.nan
    missing = draw(masks(shape))
    return truth, SimpleNamespace(lower=middle - half, upper=middle + half, missing=missing, coverage=0.9)


@given(intervals(), st.integers(-100, 100), st.floats(-1e3, 1e3), levels)
def test_metrics_scale_shift_and_add_up(case, power, shift, level):
    truth, result = case
    unit = 2.0**power
    scaled = SimpleNamespace(
        lower=result.lower * unit, upper=result.upper * unit, missing=result.missing, coverage=result.coverage
    )

    def same(a: float, b: float) -> bool:
        return a == b or (np.isnan(a) and np.isnan(b))

    assert same(metrics.coverage(truth * unit, scaled), metrics.coverage(truth, result))
    assert same(metrics.width(scaled), metrics.width(result) * unit)
    assert same(metrics.infinite_share(scaled), metrics.infinite_share(result))
    assert same(metrics.interval_score(truth * unit, scaled), metrics.interval_score(truth, result) * unit)
    known = result.missing & ~np.isnan(truth)
    inside = metrics.covered(truth, result.lower, result.upper)[known]
    if known.any():
        assert metrics.coverage(truth, result) == inside.mean()
        assert 0 <= metrics.coverage(truth, result) <= 1
    for axis in range(truth.ndim):
        groups = metrics.coverage_by_slice(truth, result, axis)
        assert sum(g.entries for g in groups) == known.sum()
        hits = sum(g.coverage * g.entries for g in groups if g.entries)
        assert hits == pytest.approx(inside.sum())
    deciles = metrics.coverage_by_decile(truth, result, truth)
    sizes = [g.entries for g in deciles]
    assert sum(sizes) == known.sum() and max(sizes) - min(sizes) <= 1
    scores = metrics.interval_scores(truth, result.lower, result.upper, level)
    wide = metrics.widths(result.lower, result.upper)
    inside = metrics.covered(truth, result.lower, result.upper)
    np.testing.assert_array_equal(scores[inside], wide[inside])
    assert (scores[~np.isnan(truth)] >= wide[~np.isnan(truth)]).all()


@given(shapes(), seeds, st.lists(levels, min_size=1, max_size=4, unique=True), st.integers(-30, 30))
def test_miscoverage_and_standard_errors_are_what_they_say(shape, seed, asked, power):
    rng, unit = np.random.default_rng(seed), 2.0**power
    truth, missing = rng.normal(size=shape), rng.random(shape) < 0.7
    missing.reshape(-1)[0] = True

    def at(level: float) -> Any:
        half = np.full(shape, 3 * level)
        return SimpleNamespace(lower=-half, upper=half, missing=missing, coverage=level, at=at)

    gaps = [abs(level - (np.abs(truth[missing]) <= 3 * level).mean()) for level in asked]
    assert metrics.miscoverage(truth, at(0.9), asked) == pytest.approx(100 * np.mean(gaps))
    errors = metrics.standard_error(truth)
    if truth.size < 2:
        assert np.isnan(errors)
        return
    assert errors == pytest.approx(np.sqrt(((truth - truth.mean()) ** 2).sum() / (truth.size - 1) / truth.size))
    assert metrics.standard_error(truth * unit) == errors * unit
    assert metrics.standard_error(truth + 8.0) == pytest.approx(errors, rel=1e-9, abs=1e-12)
    assert np.isnan(metrics.standard_error(np.append(truth, np.inf)))
    group = metrics.coverage_by_slice(truth, at(0.5), 0)[0]
    assert isinstance(group, metrics.Group) and group.label == 0


@given(
    st.integers(3, 9), st.integers(1, 3), st.sampled_from(["ising", "bernoulli"]),
    st.sampled_from(["constant", "adversarial"]), seeds,
)  # fmt: skip
def test_a_paper_setting_is_its_parts_and_repeats_by_seed(d, rank, model, kind, seed):
    one, other = (simulate.paper_setting(d, rank, model, kind, seed, sweeps=4) for _ in range(2))
    assert isinstance(one, simulate.PaperSetting)
    for name in ("parameter", "mask", "truth_signal", "data", "observed"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        assert getattr(one, name).shape == (d, d, d)
    np.testing.assert_array_equal(np.isnan(one.observed), ~one.mask)
    np.testing.assert_array_equal(one.observed[one.mask], one.data[one.mask])
    for unfolded in (np.moveaxis(one.truth_signal, k, 0).reshape(d, -1) for k in range(3)):
        assert np.linalg.matrix_rank(unfolded) <= 3
    noise = np.abs(one.data - one.truth_signal)
    assert np.abs(one.truth_signal).max() / noise.max() == pytest.approx(2, rel=1e-6)
    if kind == "constant" and model == "bernoulli":  # the kind of noise changes the noise alone
        rough = simulate.paper_setting(d, rank, model, "adversarial", seed, sweeps=4)
        np.testing.assert_array_equal(rough.mask, one.mask)
        np.testing.assert_array_equal(rough.truth_signal, one.truth_signal)


@given(shapes(longest=8, most=300), st.sampled_from([0.0, 0.01, 0.3, 0.7, 0.99]), seeds)
def test_masks_have_their_shape_and_repeat_by_seed(shape, missing, seed):
    for make in (mask_module.random_mask, mask_module.block_mask, mask_module.patch_mask, mask_module.ising_mask):
        one, other = (make(shape, missing=missing, seed=seed) for _ in range(2))
        assert one.shape == shape and one.dtype == bool
        np.testing.assert_array_equal(one, other)
    assert 1 - mask_module.block_mask(shape, missing, seed=seed).mean() >= missing


@given(shapes(orders=(2, 4), longest=8, most=300), seeds, st.sampled_from(["constant", "adversarial"]))
def test_simulated_fields_have_the_size_they_say(shape, seed, kind):
    parameter, signal = simulate.block_parameter(shape, 1, seed), simulate.tucker_signal(shape, 1, seed)
    assert np.abs(parameter).max() == pytest.approx(2) and np.abs(signal).max() == pytest.approx(2)
    made = simulate.noise(parameter, kind, signal, seed=seed)
    assert np.abs(signal).max() / np.abs(made).max() == pytest.approx(2)
    mask = simulate.bernoulli(parameter, seed=seed)
    np.testing.assert_array_equal(mask, simulate.bernoulli(parameter, seed=seed))
    assert simulate.bernoulli(parameter + 1e4, seed=seed).all()
    assert not simulate.ising(parameter - 1e4, "zero", sweeps=2, seed=seed).any()


@given(st.tuples(st.integers(2, 12), st.integers(2, 12), st.integers(1, 12)), st.floats(0.05, 0.9), seeds)
def test_tec_like_days_have_their_gaps(shape, missing, seed):
    day = simulate.tec_like(shape, seed % 10_000, missing)
    assert isinstance(day, simulate.TecLike)
    about = day.to_dataset().attrs
    assert (about["corten_seed"], about["corten_missing"]) == (seed % 10_000, missing)
    assert day.truth.shape == day.mask.shape == shape and (day.truth > 0).all()
    assert day.observed.shape == shape and np.isnan(day.observed[~day.mask]).all()
    assert not day.mask.all()


@given(st.tuples(*[st.integers(3, 9)] * 3), st.floats(0.1, 0.8), st.floats(0.0, 0.6), seeds)
def test_simulated_seas_have_land_and_clouds(shape, missing, land, seed):
    days = simulate.sea_like(shape, seed % 10_000, missing, land)
    assert days.attrs["corten_land"] == land and days["sst"].shape == shape
    dry = np.broadcast_to(days["land"].values[..., None] != 0, shape)
    seen = ~np.isnan(days["sst"].values)
    assert not (seen & dry).any() and (np.isnan(days["measured"].values) == dry).all() and not dry.all()
    np.testing.assert_array_equal(days["sst"].values[seen], days["measured"].values[seen])


@given(shapes(orders=(2, 4), longest=5, most=60), st.data())
def test_tables_are_tensors_and_come_back(shape, data):
    """Rows in any order, some without a value, some doubled, some absent."""
    import pandas as pd

    mask = data.draw(masks(shape, 2))
    x = np.where(mask, data.draw(values(shape)), np.nan)
    rng = np.random.default_rng(data.draw(seeds))
    names = [f"c{k}" for k in range(len(shape))]
    rows = pd.DataFrame(np.argwhere(np.ones(shape, bool)), columns=names)
    rows["value"] = x.reshape(-1)
    turned = rows.iloc[rng.permutation(len(rows))]
    table = corten.io.from_table(turned)
    assert table.data.dims == tuple(names) and table.duplicates == 0
    np.testing.assert_array_equal(table.data.to_numpy(), x)
    doubled = corten.io.from_table(pd.concat([turned, turned.iloc[:3]]))
    np.testing.assert_allclose(doubled.data.to_numpy(), x, rtol=1e-15)
