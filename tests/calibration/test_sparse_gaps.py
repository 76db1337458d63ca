"""Pseudo-gaps in very sparse data leave entries to learn from, and the model of a large mask is chosen on a part."""

import numpy as np
import pytest

from corten.calibration import gaps
from corten.calibration.gaps import GapCalibration, mixed_part
from corten.calibration.pseudo_gaps import in_blocks, thinned
from corten.conformal.local_scale import LearnedScale
from corten.data.observed import ObservedTensor
from corten.propensity import IsingPropensity


def test_rounds_of_sparse_data_keep_a_good_part_of_the_entries():
    rng = np.random.default_rng(0)
    x = np.where(rng.random((20, 20, 20)) < 0.02, rng.normal(size=(20, 20, 20)), np.nan)
    observed = ObservedTensor.of(x)
    plan = GapCalibration(rounds=6, drawn=0.0).plan(observed, seed=0)
    shares = [one.hidden.sum() / observed.mask.sum() for one in plan.rounds]
    assert min(shares) > 0.2 and max(shares) < 0.8  # copies of the gaps hide 98 % of the entries


def test_rounds_of_stations_with_many_gaps_keep_most_entries():
    rng = np.random.default_rng(0)
    silent = rng.random((30, 40)) < 0.7  # whole days of stations, as in networks
    gap = np.repeat(silent[:, :, None], 6, axis=2)
    kinds = ("unordered", "ordered", "ordered")
    hidden = thinned(~gap, gap, usable=~gap, kinds=kinds, rng=rng)
    assert (~gap).sum() / 9 < hidden.sum() <= (~gap).sum() / 3
    days = hidden.any(axis=2)
    assert (hidden == days[:, :, None]).all()  # days are hidden as a whole
    np.testing.assert_array_equal(thinned(hidden, gap, usable=~gap, kinds=kinds, rng=rng), hidden)
    np.testing.assert_array_equal(thinned(~gap, gap, usable=~gap, kinds=("ordered",) * 3, rng=rng), ~gap)


def test_blocks_are_as_long_as_gaps_are_deep():
    usable = np.zeros((60, 60), bool)
    usable[:20, :20] = True  # the others lie far away: blocks are long, and hide neighbours together
    hidden = in_blocks(usable, usable, ("ordered", "ordered"), np.random.default_rng(1))
    inside = usable[:, 1:] & usable[:, :-1]
    changes = (hidden[:, 1:] != hidden[:, :-1])[inside].mean()
    assert 0 < hidden.sum() < usable.sum()
    assert changes < 0.1


def test_settings_of_a_large_mask_are_chosen_on_a_part(monkeypatch):
    fitted = []
    whole = IsingPropensity.fit

    def fit(self, mask, *args, **options):
        fitted.append((mask.shape, self.rank))
        return whole(self, mask, *args, **options)

    monkeypatch.setattr(IsingPropensity, "fit", fit)
    monkeypatch.setattr(gaps, "MAX_ENTRIES_OF_MASK", 800)
    x = np.where(np.random.default_rng(0).random((40, 12, 5)) < 0.6, 1.0, np.nan)
    model = gaps._model_of_mask(ObservedTensor.of(x), "auto")
    assert [shape for shape, _ in fitted] == [(10, 12, 5), (40, 12, 5)]
    assert fitted[0][1] == "auto" and fitted[1][1] == model.rank
    assert model.parameter.shape == x.shape
    assert "propensity rank" in [one.what for one in model.choices]


def test_a_part_has_entries_of_both_kinds_or_is_the_whole():
    mask = np.ones((1000, 2), bool)
    mask[870:900] = False
    assert mixed_part(mask, 500) == (slice(750, 1000), slice(0, 2))
    mask[:] = True
    mask[600] = False
    mask[601:] = True
    assert not mask[mixed_part(mask, 500)].all()


@pytest.mark.parametrize(("said", "expected"), [(1e-6, 0.5), (1.0, 1.0), (1e6, 2.0)])
def test_the_scale_stays_in_the_range_that_it_was_learned_from(said, expected):
    class Says:
        def predict(self, features):
            return np.full(len(features), said)

    learned = LearnedScale(np.array([0.5, 2.0]), {0: Says()}, lambda entries: entries)
    np.testing.assert_allclose(learned.predict(np.zeros((3, 1))), expected)
