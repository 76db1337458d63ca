"""Rounds: what they hide, that they repeat by seed, and that the choice between them follows the gaps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corten.calibration.auto import choose_calibration, share_deeper
from corten.calibration.gap_rounds import run_rounds
from corten.calibration.gap_scale import deeper_than_near
from corten.calibration.gaps import GapCalibration
from corten.calibration.pseudo_gaps import even_moves, hide
from corten.calibration.split import SplitCalibration
from corten.calibration.task import Calibration, Round, Task
from corten.completer import ConformalCompleter
from corten.completion.axes_kinds import edges_of, move_gap
from corten.completion.protocol import Fill
from corten.conformal.scores import as_score
from corten.data.axes import Axis
from corten.data.observed import ObservedTensor
from corten.propensity import IsingPropensity

DATA = Path(__file__).parents[3] / "shared" / "data"


def patchy(shape: tuple[int, ...] = (24, 30, 12), seed: int = 0) -> np.ndarray:
    """A mask with a few wide gaps."""
    rng = np.random.default_rng(seed)
    mask = np.ones(shape, bool)
    for _ in range(6):
        corner = [rng.integers(0, n - n // 3) for n in shape]
        mask[tuple(slice(c, c + n // 3) for c, n in zip(corner, shape))] = False
    return mask


def tensor(mask: np.ndarray, where: np.ndarray | None = None, **labels: Any) -> ObservedTensor:
    """Noise under a mask, its axes ordered unless told: noise alone would make them unordered."""
    x = np.random.default_rng(1).standard_normal(mask.shape)
    kinds = dict.fromkeys(range(mask.ndim), "ordered") | labels.pop("axis_kinds", {})
    return ObservedTensor.of(np.where(mask, x, np.nan), where, axis_kinds=kinds, **labels)


def test_a_round_refuses_to_contradict_itself() -> None:
    mask = np.ones((2, 2), bool)
    with pytest.raises(ValueError, match="both train and be hidden"):
        Round(mask, mask)
    with pytest.raises(ValueError, match="shapes must agree"):
        Round(mask, mask[:1])


def test_random_split_is_a_thinning_of_the_observed() -> None:
    mask = np.random.default_rng(0).random((60, 50)) < 0.6
    plan = SplitCalibration(0.7).plan(tensor(mask), seed=0)
    one = plan.rounds[0]
    assert one.train_share == 0.7
    np.testing.assert_array_equal(one.train | one.hidden, mask)
    # Five standard deviations of a binomial share; a split that shared the user's stream of draws would give 1.
    assert abs(one.train.sum() / mask.sum() - 0.7) < 5 * np.sqrt(0.21 / mask.sum())
    again = SplitCalibration(0.7).plan(tensor(mask), seed=0).rounds[0]
    np.testing.assert_array_equal(one.train, again.train)
    assert (SplitCalibration(0.7).plan(tensor(mask), seed=1).rounds[0].train != one.train).any()
    with pytest.raises(ValueError, match="train_share is 1"):
        SplitCalibration(1.0)


def test_pseudo_gaps_hide_observed_entries_under_copies_of_the_gap() -> None:
    mask = patchy()
    domain = np.ones(mask.shape, bool)
    domain[:4] = False
    observed = tensor(mask & domain, domain)
    plan = GapCalibration(rounds=5).plan(observed, seed=3)
    assert GapCalibration().pooled and isinstance(GapCalibration(), Calibration)
    assert len(plan.rounds) == 5
    least = 0.1 * min(observed.n_missing, observed.n_observed)
    for one in plan.rounds:
        np.testing.assert_array_equal(one.train | one.hidden, observed.mask)
        assert one.train_share is None
        assert one.hidden.sum() >= least
        assert not one.hidden[:4].any()
    again = GapCalibration(rounds=5).plan(observed, seed=3)
    assert all((a.hidden == b.hidden).all() for a, b in zip(plan.rounds, again.rounds))
    assert any((a.hidden != b.hidden).any() for a, b in zip(plan.rounds, plan.rounds[1:]))


def test_entries_outside_the_domain_do_not_count_for_the_number_of_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corten.calibration.gaps.FEWER_ROUNDS", {1300: 3})
    domain = np.zeros((100, 100), bool)
    domain[:64, :64] = True
    mask = domain & (np.random.default_rng(0).random(domain.shape) < 0.48)  # a copy hides about 1,000 of them
    assert len(GapCalibration(drawn=0.0).plan(tensor(mask, domain), seed=0).rounds) == 24
    assert GapCalibration().rounds_for(domain.size, int((domain & ~mask).sum())) == 3


def test_units_are_permuted_whole() -> None:
    mask = np.ones((7, 20), bool)
    mask[2] = False
    observed = tensor(mask, axis_kinds={0: "unordered"})
    for one in GapCalibration(rounds=6, drawn=0.0).plan(observed, seed=0).rounds:
        assert one.hidden.sum() == 20
        assert one.hidden.all(axis=1).sum() == 1


def test_a_share_of_the_rounds_hides_under_masks_drawn_from_a_fitted_model() -> None:
    observed = tensor(patchy((10, 12, 8)))
    plan = GapCalibration(rounds=4, drawn=0.5).plan(observed, seed=0)
    assert plan.choices[0].values["drawn_rounds"] == 2 and "drawn from an Ising model" in plan.choices[0].because
    moved = GapCalibration(rounds=4, drawn=0.0).plan(observed, seed=0)
    assert "drawn" not in moved.choices[0].because
    # Every copy of the gap has as many entries as the gap; drawn gaps need not.
    for one in plan.rounds:
        np.testing.assert_array_equal(one.train | one.hidden, observed.mask)
        assert one.hidden.any()
    assert not (plan.rounds[0].hidden == plan.rounds[1].hidden).all()
    again = GapCalibration(rounds=4, drawn=0.5).plan(observed, seed=0)
    assert all((a.hidden == b.hidden).all() for a, b in zip(plan.rounds, again.rounds))
    with pytest.raises(ValueError, match="drawn is 2"):
        GapCalibration(drawn=2)


@pytest.mark.parametrize("missing", [1, 11])
def test_tiny_tensors_have_rounds(missing: int) -> None:
    mask = np.ones(12, bool)
    mask[:missing] = False
    observed = tensor(mask.reshape(3, 4))
    if observed.n_observed < 2:
        with pytest.raises(ValueError, match="at least two"):
            GapCalibration(rounds=3).plan(observed, seed=0)
        return
    for one in GapCalibration(rounds=3).plan(observed, seed=0).rounds:
        assert one.train.any()
        assert one.hidden.any()


def test_the_choice_follows_the_depth_of_the_gaps() -> None:
    rng = np.random.default_rng(0)
    for share in (0.2, 0.6, 0.95):
        calibration, (choice, *_) = choose_calibration(tensor(rng.random((20, 20, 20)) < share), seed=0)
        assert isinstance(calibration, SplitCalibration), choice
    calibration, (choice, *_) = choose_calibration(tensor(patchy()), seed=0)
    assert isinstance(calibration, GapCalibration), choice
    assert "lie further" in choice.because
    days = np.broadcast_to((rng.random((15, 20, 1)) < 0.7), (15, 20, 24))
    calibration, _ = choose_calibration(tensor(days, axis_kinds={0: "unordered"}), seed=0)
    assert isinstance(calibration, GapCalibration)
    without_order = tensor(rng.random((9, 8)) < 0.5, axis_kinds={0: "unordered", 1: "unordered"})
    assert share_deeper(without_order, SplitCalibration(), 0) == {}


@pytest.mark.skipif(not DATA.exists(), reason="shared data are not here")
@pytest.mark.parametrize(("name", "key", "expected"), [
    ("ising_40", "mask", SplitCalibration),
    ("tec_namerica_20190425-26", "mask", GapCalibration),
    ("ndvi_modis_gapfill", "mask20", GapCalibration),
])  # fmt: skip
def test_the_choice_on_real_masks(name: str, key: str, expected: type) -> None:
    mask = np.load(DATA / f"{name}.npz")[key].astype(bool)
    calibration, (choice, *_) = choose_calibration(tensor(mask), seed=0)
    assert isinstance(calibration, expected), choice


def test_gaps_deeper_than_what_was_hidden_are_flagged() -> None:
    rng = np.random.default_rng(0)
    # Observed rows are few: no copy of the gap below them is as deep as the gap itself.
    deep = np.add.outer(np.sin(np.arange(40) / 6), np.cos(np.arange(12) / 5)) + 0.01 * rng.normal(size=(40, 12))
    deep[14:] = np.nan
    fitted = ConformalCompleter("smooth", "uniform", GapCalibration(rounds=6, drawn=0)).fit(deep)
    result = fitted.intervals(0.9)
    assert result.beyond_tested[-5:].all() and not result.beyond_tested[:16].any()
    np.testing.assert_array_equal(result.beyond_tested, result.flag == 5)
    said, count = fitted.warnings()[0], int(result.beyond_tested.sum())
    share = count / result.missing.sum()
    assert said.startswith(f"The coverage of {count:,} of the missing entries ({share:.1%}) is unknown")
    assert result.summary().beyond_tested == count


@pytest.mark.parametrize("seed", range(5))
def test_single_missing_entries_are_not_flagged(seed: int) -> None:
    rng = np.random.default_rng(seed)
    even = np.add.outer(np.sin(np.arange(24) / 4), np.cos(np.arange(24) / 5)) + 0.01 * rng.normal(size=(24, 24))
    even[rng.random(even.shape) < 0.3] = np.nan
    fitted = ConformalCompleter("smooth", "uniform", GapCalibration(rounds=6), seed=seed).fit(even)
    assert fitted.warnings() == [] and not fitted.intervals(0.9).beyond_tested.any()
    assert not ConformalCompleter("smooth", "uniform", "random").fit(even).intervals(0.9).beyond_tested.any()


def test_the_missingness_is_modelled_once(monkeypatch):
    """The model that pseudo-gaps are drawn from is the model of the fit, to the bit that of a second fit."""
    calls, fit = [], IsingPropensity.fit

    def counted(self, *args, **options):
        calls.append(self)
        return fit(self, *args, **options)

    monkeypatch.setattr(IsingPropensity, "fit", counted)
    rng = np.random.default_rng(0)
    x = np.add.outer(np.sin(np.arange(12.0)), np.cos(np.arange(10.0)))
    x[rng.random(x.shape) < 0.3] = np.nan
    once = ConformalCompleter("smooth", "auto", GapCalibration(rounds=3)).fit(x)
    assert len(calls) == 1
    again = ConformalCompleter("smooth", IsingPropensity(max_rank=5), GapCalibration(rounds=3)).fit(x)
    assert len(calls) == 3
    assert np.array_equal(once.probabilities, again.probabilities)
    assert np.array_equal(once.intervals(0.9).upper, again.intervals(0.9).upper)


@dataclass(frozen=True)
class Recorder:
    """A completion whose mix says which entries it was learned from: values are the entries' own numbers."""

    learned: np.ndarray | None = None
    choices: tuple = ()

    def prepare(self, values: np.ndarray, mask: np.ndarray, axes: object, seed: int) -> Recorder:
        return self

    def fill(self, values: np.ndarray, mask: np.ndarray) -> Fill:
        number = np.arange(values.size, dtype=float).reshape(values.shape)
        return Fill(number, {"number": number})

    def combine(self, members: dict[str, np.ndarray], truth: np.ndarray) -> Recorder:
        np.testing.assert_array_equal(members["number"], truth)
        return Recorder(truth)

    def mix(self, members: dict[str, np.ndarray]) -> np.ndarray:
        assert self.learned is not None
        return np.isin(members["number"], self.learned).astype(float)


def test_the_mix_of_an_entry_is_learned_from_other_entries() -> None:
    mask = patchy((24, 30))
    x = np.where(mask, np.arange(mask.size, dtype=float).reshape(mask.shape), np.nan)
    observed = ObservedTensor.of(x)
    task = Task(observed, Recorder(), None, as_score("absolute"))
    run = run_rounds(task, GapCalibration(rounds=5, drawn=0).plan(observed, 0).rounds, changed=observed, change=None)
    assert not run.estimate.any()  # no hidden entry, in any round, is mixed by what it helped to learn
    assert set(run.prepared.learned) == set(run.truth)  # the final mix is learned from all of them


def test_copies_of_a_gap_at_an_edge_stay_at_an_edge() -> None:
    """A shifted copy lies between observed entries, where estimates are better than beyond the edge of the data."""
    mask = np.ones((20, 30), bool)
    mask[:, 22:] = False
    mask[:12, 22:] = True  # the gap is the lower right corner
    assert edges_of(~mask, ("ordered", "ordered")) == (0, 1)
    assert edges_of(~mask, ("ordered", "periodic")) == (0,)
    rounds = GapCalibration(rounds=24, drawn=0).plan(tensor(mask), seed=0).rounds
    corners = [[one.hidden[i, j] | ~mask[i, j] for i in (0, -1) for j in (0, -1)] for one in rounds[1::2]]
    assert all(any(corner) for corner in corners)
    # Others stay at one edge of the two, as there are four corners only.
    sides = {(bool(h[[0, -1]].any()), bool(h[:, [0, -1]].any())) for h in (one.hidden for one in rounds[::2])}
    assert (False, False) not in sides and {(True, False), (False, True)} <= sides


def test_copies_of_a_gap_inside_the_data_are_not_cut_at_the_edges() -> None:
    """Parts of a gap at two edges are harder to fill than the gap: intervals of a patch inside were a third wider."""
    mask = np.ones((20, 30), bool)
    mask[7:14, 9:20] = False
    rounds = GapCalibration(rounds=24, drawn=0).plan(tensor(mask), seed=0).rounds
    sizes = np.array([[np.ptp(at) + 1 for at in np.nonzero(one.hidden)] for one in rounds])
    assert (sizes <= (7, 11)).all()
    assert len({one.hidden.tobytes() for one in rounds}) > 12
    # As the gap does, copies keep away from the edges, where they would be filled from one side.
    inside = [one.hidden[3:-3, 5:-5].sum() == one.hidden.sum() for one in rounds]
    assert all(inside)
    edge = np.ones((20, 30), bool)
    edge[:7, 9:20] = False  # along the second axis the gap touches no edge
    hidden = [one.hidden for one in GapCalibration(rounds=24, drawn=0).plan(tensor(edge), seed=0).rounds]
    assert all(np.ptp(np.nonzero(one)[1]) < 11 for one in hidden)
    assert all(one[[0, -1]].any() for one in hidden)


def test_a_part_of_the_data_where_nothing_so_deep_was_hidden_is_beyond_what_was_tested() -> None:
    """Errors in the south of a map say little of those in the north, at the same depth."""
    axes = (Axis("lat", 9), Axis("station", 4, kind="unordered"))
    index = lambda *at: np.ravel_multi_index(at, (9, 4))  # noqa: E731
    missing, hidden = index([0, 4, 8], [0, 0, 0]), np.tile(index([0, 4, 8], [3, 3, 3]), 4)
    found = deeper_than_near(
        missing,
        np.array([2.0, 2.0, 4.0]),
        hidden=hidden,
        hidden_depths=np.tile([1.0, 1.0, 5.0], 4),
        round_sizes=[3] * 4,
        axes=axes,
    )
    assert found.tolist() == [True, True, False]
    # Three rounds are too few.
    assert deeper_than_near(
        missing,
        np.full(3, 2.0),
        hidden=hidden,
        hidden_depths=np.repeat([6.0, 1.0], [9, 3]),
        round_sizes=[3] * 4,
        axes=axes,
    ).all()
    assert (
        deeper_than_near(
            missing, np.full(3, 6.0), hidden=hidden, hidden_depths=np.full(12, 6.0), round_sizes=[3] * 4, axes=axes
        ).sum()
        == 0
    )
    # Deep in the south and deep in the west, but not deep in the south-west.
    axes = (Axis("lat", 12), Axis("lon", 12))
    index = lambda *at: np.ravel_multi_index(at, (12, 12))  # noqa: E731
    missing, hidden = index([0, 0, 11], [0, 11, 0]), np.tile(index([1, 10], [10, 1]), 4)
    found = deeper_than_near(
        missing, np.full(3, 2.0), hidden=hidden, hidden_depths=np.full(8, 3.0), round_sizes=[2] * 4, axes=axes
    )
    assert found.tolist() == [True, False, False]
    # Four rounds of which each lies behind the one before.
    found = deeper_than_near(
        np.array([0]),
        np.array([2.0]),
        hidden=np.arange(4),
        hidden_depths=np.full(4, 3.0),
        round_sizes=[1] * 4,
        axes=[Axis("x", 9)],
    )
    assert not found.any()


def test_copies_are_spread_evenly():
    draws = np.stack([even_moves(8, 3, np.random.default_rng(seed)) for seed in range(200)])
    assert draws.shape == (200, 8, 3, 2)
    eighths = np.sort((8 * draws).astype(int), axis=1)
    np.testing.assert_array_equal(eighths, np.broadcast_to(np.arange(8)[:, None, None], eighths.shape))
    # Every copy by itself is moved uniformly, and apart from the others along other axes.
    flat = draws.reshape(200, 8, 6)
    assert abs(flat.mean(axis=0) - 0.5).max() < 5 * np.sqrt(1 / 12 / 200)
    for a in range(6):
        for b in range(a):
            assert abs(np.corrcoef(flat[:, 0, a], flat[:, 0, b])[0, 1]) < 5 / np.sqrt(200)


def test_copies_of_a_plan_shift_as_drawn():
    gap = np.zeros((24, 10), bool)
    gap[3:6] = True
    places = []
    for moves in even_moves(6, 2, np.random.default_rng(0)):
        copy = move_gap(gap, ("ordered", "ordered"), rng=np.random.default_rng(1), moves=moves)
        assert copy.sum() == gap.sum()
        start = 3 if moves[0, 0] >= 0.5 else 18
        places.append((int(24 * moves[0, 1]) + start) % 24)
        assert copy[places[-1]].all() and not copy[places[-1] - 1].any()
    assert len(set(places)) > 1


def test_the_copies_of_a_plan_are_spread_evenly():
    # A gap of three planes inside: copies that stay inside lie anywhere from plane 3 to plane 34.
    gap = np.zeros((40, 12), bool)
    gap[9:12] = True
    data = tensor(~gap, axis_kinds={0: "ordered", 1: "ordered"})
    for seed in range(12):  # drawn independently, one in two such plans has a wider space without a copy
        places = []
        for one in GapCalibration(rounds=8, drawn=0).plan(data, seed).rounds:
            # Entries of the gap itself cannot be hidden: of a copy that overlaps it the other planes are seen.
            planes = np.flatnonzero(one.hidden.all(axis=1))
            assert 1 <= planes.size <= 3 and not gap[planes].any()
            places.append(planes.mean())
        places = np.sort([0, *places, 39])
        assert np.diff(places).max() < 14


def test_only_the_first_copy_is_moved_as_told():
    gap = np.zeros((12, 6), bool)
    gap[2:4] = True
    moves = np.array([[0.9, 0.999], [0.9, 0.0]])  # not reflected, by eleven planes: one back, half of it into the gap
    kinds, rng = ("ordered", "ordered"), np.random.default_rng(0)
    first = hide(None, gap, usable=~gap, kinds=kinds, least=1, rng=rng, kept=(), moves=moves)
    assert first[1].all() and first.sum() == 6
    later = hide(None, gap, usable=~gap, kinds=kinds, least=12, rng=rng, kept=(), moves=moves)
    assert later.sum() == 12
