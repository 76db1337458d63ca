"""The audit: it finds the true coverage without the truth, and says so when intervals are wrong.

Settings are simulated with a parameter inside the model class; seeds are fixed, and three standard errors are a
false-alarm rate of 3e-3 per comparison.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import corten
from corten import simulate
from corten.calibration.hiding import draw_hidings
from corten.calibration.task import Plan, Round
from corten.completion.smooth import PreparedSmooth, SmoothCompletion
from corten.conformal.depth import depth
from corten.data.observed import ObservedTensor
from corten.evidence import metrics
from corten.evidence.audit import _weights, as_if_missing, rerun
from corten.evidence.audit_table import Sample, clustered_share, conclusion

TUCKER = corten.TuckerCompletion(rank=3)
BERNOULLI = corten.BernoulliPropensity(rank=3)
SHAPE = (30, 30, 30)


def setting(model="bernoulli", seed=0, shape=SHAPE, strength=1 / 15):
    """Data whose noise is largest where entries go missing, and the parameter behind the mask."""
    parameter = simulate.block_parameter(shape, 3, seed, noise=0.0)
    signal = simulate.tucker_signal(shape, 3, seed + 1)
    data = signal + simulate.noise(parameter, "adversarial", signal, seed=seed + 2)
    if model == "ising":
        mask = simulate.ising(parameter, coupling=strength, seed=seed + 3)
    else:
        mask = simulate.bernoulli(parameter, seed=seed + 3)
    return data, np.where(mask, data, np.nan), parameter


def fit(x, propensity, calibration="random", **options):
    made = corten.ConformalCompleter(completion=TUCKER, propensity=propensity, calibration=calibration, **options)
    return made.fit(x)


@pytest.fixture(scope="module")
def adversarial():
    data, x, _ = setting(seed=5)
    return data, x


def agrees(audit, fitted, data, level, errors=3.0):
    true = metrics.coverage(data, fitted.intervals(level))
    return abs(audit.coverage(level) - true) <= errors * audit.standard_error(level)


def test_right_weights_are_found_right(adversarial):
    data, x = adversarial
    fitted = fit(x, BERNOULLI)
    audit = fitted.audit(rounds=9, levels=(0.8, 0.9), reference=BERNOULLI)
    for level in (0.8, 0.9):
        assert agrees(audit, fitted, data, level)
        assert abs(audit.coverage(level) - level) <= 3 * audit.standard_error(level)
    assert audit.standard_error(0.9) < 0.02
    assert "no evidence of under-coverage" in audit.verdict()
    found = [(level, audit.coverage(level), audit.standard_error(level)) for level in (0.8, 0.9)]
    said = {conclusion(*one[:2], error=one[2], rounds=9, tolerance=audit.tolerance) for one in found}
    assert audit.verdict().count("audited coverage is") == len(said)  # levels of the same conclusion share a line


def test_unweighted_intervals_are_caught(adversarial):
    """The very failure it is for; without reweighting by the odds the same audit is blind."""
    data, x = adversarial
    fitted = fit(x, "uniform")
    audit = fitted.audit(rounds=9, levels=(0.8, 0.9), reference=BERNOULLI)
    true = metrics.coverage(data, fitted.intervals(0.9))
    assert true < 0.85
    assert agrees(audit, fitted, data, 0.9) and agrees(audit, fitted, data, 0.8)
    assert audit.coverage(0.9) < 0.9 - 3 * audit.standard_error(0.9)
    assert "too narrow" in audit.verdict()
    blind = fitted.audit(rounds=6, levels=(0.9,), reference=fitted.propensity, kinds=("random",))
    assert blind.coverage(0.9) > 0.88, "weighed by its own flat odds the failure would go unseen"


def test_the_default_reference_catches_unweighted_intervals_too(adversarial):
    _, x = adversarial
    fitted = fit(x, "uniform")
    audit = fitted.audit(rounds=6, levels=(0.9,))
    assert audit.coverage(0.9) < 0.9 - 3 * audit.standard_error(0.9)
    assert "Ising model of the whole mask" in audit.notes[0]


def test_a_wrong_neighbourhood_is_caught():
    """Strong coupling along one axis; a model that believes in another axis gives weights that are wrong."""
    parameter = simulate.block_parameter(SHAPE, 3, 11, noise=0.0) * 0.35
    along = corten.propensity.neighborhood.resolve([[1, 0, 0], [-1, 0, 0]], SHAPE)
    mask = simulate.ising(parameter + 0.9, coupling=0.5, seed=12, neighborhood=along)
    truth = corten.KnownPropensity(parameter + 0.9, coupling=0.5, neighborhood=[[1, 0, 0], [-1, 0, 0]])
    wrong = corten.KnownPropensity(parameter + 0.9, coupling=0.5, neighborhood=[[0, 1, 0], [0, -1, 0]])
    odds = -truth.fit(mask).log_odds(mask)
    signal = simulate.tucker_signal(SHAPE, 3, 13)
    spread = 0.1 * np.exp(0.9 * odds.astype(float))
    data = signal + spread * np.random.default_rng(14).standard_normal(SHAPE)
    x = np.where(mask, data, np.nan)
    reference = truth.fit(mask)
    good = fit(x, truth).audit(rounds=6, levels=(0.9,), reference=reference)
    bad = fit(x, wrong).audit(rounds=6, levels=(0.9,), reference=reference)
    assert abs(good.coverage(0.9) - 0.9) <= 3 * good.standard_error(0.9)
    assert bad.coverage(0.9) < 0.9 - 3 * bad.standard_error(0.9)
    assert agrees(bad, fit(x, wrong), data, 0.9)


def test_a_propensity_fitted_on_the_wrong_neighbourhood_is_caught():
    """Fitted, not given: a model of the right axis covers, one of another axis does not, and the audit says so."""
    right, wrong = [[1, 0, 0], [-1, 0, 0]], [[0, 1, 0], [0, -1, 0]]
    shape = (30, 30, 30)
    parameter = simulate.block_parameter(shape, 3, 11, noise=0.0) * 0.2 + 0.8
    along = corten.propensity.neighborhood.resolve(right, shape)
    mask = simulate.ising(parameter, coupling=0.35, seed=12, neighborhood=along)
    reference = corten.KnownPropensity(parameter, coupling=0.35, neighborhood=right).fit(mask)
    spread = 0.05 * np.exp(-reference.log_odds(mask).astype(float))
    data = simulate.tucker_signal(shape, 3, 13) + spread * np.random.default_rng(14).standard_normal(shape)
    x = np.where(mask, data, np.nan)
    found = {}
    for name, offsets in (("right", right), ("wrong", wrong)):
        fitted = fit(x, corten.IsingPropensity(coupling=0.35, neighborhood=offsets, rank=1))
        audit = fitted.audit(rounds=6, levels=(0.9,), reference=reference)
        found[name] = (metrics.coverage(data, fitted.intervals(0.9)), audit.coverage(0.9), audit.standard_error(0.9))
    assert abs(found["right"][0] - 0.9) < 0.02 and abs(found["right"][1] - 0.9) <= 3 * found["right"][2]
    assert found["wrong"][0] < 0.86 and found["wrong"][1] < 0.9 - 3 * found["wrong"][2]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("model", ["bernoulli", "ising"])
@pytest.mark.parametrize("propensity", ["auto", "uniform"])
def test_audited_and_true_coverage_agree(seed, model, propensity):
    """24 settings, weights right and wrong, two levels each: the truth lies within three standard errors."""
    data, x, _ = setting(model, seed=100 + 10 * seed, shape=(40, 40, 40))
    fitted = fit(x, propensity)
    audit = fitted.audit(rounds=20, levels=(0.8, 0.9))
    assert agrees(audit, fitted, data, 0.9) and agrees(audit, fitted, data, 0.8)


@pytest.mark.slow
def test_an_audit_fills_once_a_round_and_chooses_nothing_again(monkeypatch):
    """Settings and odds stay those of the fit, so that twenty rounds cost twenty fills and one model of the mask."""
    calls = Counter()

    def counted(owner, name):
        plain = getattr(owner, name)

        def call(self, *arguments, **options):
            calls[owner.__name__] += 1
            return plain(self, *arguments, **options)

        monkeypatch.setattr(owner, name, call)

    for owner, name in ((SmoothCompletion, "prepare"), (PreparedSmooth, "fill"), (corten.IsingPropensity, "fit")):
        counted(owner, name)
    fitted = corten.ConformalCompleter("smooth", "bernoulli", "random").fit(simulate.paper_setting(10, 3).observed)
    assert calls["SmoothCompletion"] == 1
    calls.clear()
    fitted.audit(rounds=4)
    assert calls == {"PreparedSmooth": 4, "IsingPropensity": 1}


def test_the_table_has_every_group_and_the_parts_add_up(adversarial):
    _, x = adversarial
    audit = fit(x, BERNOULLI).audit(rounds=3, levels=(0.5, 0.9), reference=BERNOULLI)
    table = audit.table()
    assert list(table.columns) == [
        "level", "by", "group", "coverage", "standard_error", "width", "infinite_share", "count",
    ]  # fmt: skip
    assert set(table.by) == {"all", "hiding", "propensity", "depth", "axis_0", "axis_1", "axis_2"}
    assert set(audit.table("hiding").group) == {"drawn", "moved", "random"}
    assert len(audit.table("axis_1")) == 2 * SHAPE[1]
    assert (audit.table("axis_1").query("level == 0.5")["count"].sum()) == audit.table("all")["count"][0]
    assert audit.coverage(0.5) < audit.coverage(0.9)
    with pytest.raises(ValueError, match="the table has all, hiding"):
        audit.table("time")
    with pytest.raises(ValueError, match="was not audited"):
        audit.coverage(0.99)
    text = str(audit)
    assert "nominal  90.0%" in text and "Limits:" in text
    assert "<table>" in audit._repr_html_()


def test_hiding_has_the_chances_it_says():
    """Averaged over many draws, 1/chance makes every observed entry count as often as any other."""
    _, x, parameter = setting("ising", seed=3, shape=(12, 12, 12))
    observed = ObservedTensor.of(x)
    model = corten.KnownPropensity(parameter, coupling=1 / 15).fit(observed.mask)
    for kind in ("drawn", "moved", "random"):
        total = np.zeros(observed.shape)
        hidings = draw_hidings(observed, model, rounds=400, seed=1, kinds=(kind,))
        for one in hidings:
            total += one.hidden * np.exp(-np.broadcast_to(one.log_hidden, observed.shape))
        assert not total[~observed.mask].any()
        low = total[observed.mask & (parameter < 0)].mean()
        high = total[observed.mask & (parameter > 0)].mean()
        assert abs(low / high - 1) < 0.15, kind


def test_a_rerun_never_reads_what_is_hidden(adversarial):
    _, x = adversarial
    fitted = fit(x, BERNOULLI)
    own = fitted.propensity.log_odds(fitted.observed.mask)
    hiding = draw_hidings(fitted.observed, fitted.propensity, rounds=2, seed=0)[0]
    again = rerun(fitted, hiding, own_log_odds=own, inner_rounds=1, seed=3)
    changed = np.where(hiding.hidden, 3.0 - x, x)
    other = rerun(fit_like(fitted, changed), hiding, own_log_odds=own, inner_rounds=1, seed=3)
    np.testing.assert_array_equal(again.estimate, other.estimate)
    assert not again.observed.mask[hiding.hidden].any()
    assert np.isnan(again.observed.values[hiding.hidden]).all()


def fit_like(fitted, x):
    """The same fit over changed data."""
    return replace(fitted, observed=ObservedTensor.of(x))


class SingleEntries(corten.GapCalibration):
    """A broken recipe of pseudo-gaps: a tenth of the observed entries at random, none of them inside a gap."""

    def plan(self, observed, seed):
        rng, seen = np.random.default_rng(seed), np.asarray(observed.mask)
        hidden = [seen & (rng.random(seen.shape) < 0.1) for _ in range(4)]
        return Plan(tuple(Round(seen & ~one, one, None) for one in hidden))


def test_a_recipe_of_pseudo_gaps_that_is_broken_is_caught_and_a_right_one_is_not():
    field = simulate.tec_like((16, 20, 16), seed=101)
    audited, covered, words = {}, {}, {}
    for name, recipe in {"right": corten.GapCalibration(8), "broken": SingleEntries()}.items():
        fitted = corten.ConformalCompleter(completion="smooth", calibration=recipe).fit(field.observed)
        audit = fitted.audit(rounds=6, levels=(0.9,))
        covered[name] = metrics.coverage(field.truth, fitted.intervals(0.9))
        audited[name], words[name] = audit.coverage(0.9), audit.verdict()
        assert audit.gap_shaped and "Limits" in words[name]
    assert covered["broken"] < 0.5 and abs(audited["broken"] - covered["broken"]) < 0.15
    assert "too narrow" in words["broken"]
    assert abs(audited["right"] - covered["right"]) < 0.07
    assert "no evidence of under-coverage" in words["right"]


@pytest.mark.parametrize("options", [{"climatology": "axis_0"}, {"transform": "log", "bounds": (0.0, None)}])
def test_what_is_hidden_under_pseudo_gaps_is_not_read(options):
    """Other values at the hidden entries change neither estimate nor interval there."""
    field = simulate.tec_like((10, 12, 10), seed=3)
    completer = corten.ConformalCompleter(completion="smooth", calibration=corten.GapCalibration(4), **options)
    fitted = completer.fit(field.observed)
    hiding = draw_hidings(fitted.observed, fitted.propensity, rounds=2, seed=0, kinds=("moved",), whole=True)[0]
    entries = np.flatnonzero(hiding.hidden)
    # the fit's own transform was learned from the hidden entries too, so it is not to be asked
    other = fit_like(fitted, np.where(hiding.hidden, 20.0 - np.asarray(field.observed), np.asarray(field.observed)))
    again = [as_if_missing(one, hiding) for one in (fitted, other)]
    bounds = [np.stack([one.bounds(level, entries) for level in (0.5, 0.9)], axis=1) for one in again]
    np.testing.assert_array_equal(bounds[0], bounds[1])
    lower, upper = bounds[0]
    assert (lower <= upper).all() and (lower[1] <= lower[0]).all() and (upper[1] >= upper[0]).all()
    # the scores of hidden entries do not count: without them the cutoffs are others
    assert not np.isin(as_if_missing(fitted, hiding).entries, entries).any()


def test_a_fit_from_a_file_whose_completion_was_code_says_that_it_cannot_be_audited(tmp_path):
    field = simulate.tec_like((10, 12, 10), seed=3)

    def mean(x):
        return np.where(np.isnan(x), np.nanmean(x), x)

    fitted = corten.ConformalCompleter(completion=mean, calibration=corten.GapCalibration(3)).fit(field.observed)
    with pytest.raises(ValueError, match="fit again to audit it"):
        corten.load(fitted.save(tmp_path / "fit.corten")).audit(rounds=2)


def test_clustered_errors_know_that_a_repeated_entry_is_one_entry():
    rng = np.random.default_rng(0)
    hit = rng.random(200) < 0.9
    once = clustered_share(hit, np.ones(200), np.repeat(np.arange(20), 10), np.arange(200))
    twice = clustered_share(np.tile(hit, 2), np.ones(400), np.repeat(np.arange(40), 10), np.tile(np.arange(200), 2))
    assert once[0] == pytest.approx(twice[0])
    assert twice[1] > 0.9 * once[1]


def test_what_cannot_be_audited_is_refused(adversarial, tmp_path):
    _, x = adversarial
    complete = corten.ConformalCompleter(completion=TUCKER, calibration="random").fit(np.ones((4, 4)))
    with pytest.raises(ValueError, match="nothing was missing"):
        complete.audit()
    fitted = fit(x, "uniform")
    with pytest.raises(ValueError, match="rounds is 1"):
        fitted.audit(rounds=1)
    with pytest.raises(ValueError, match="kinds holds"):
        fitted.audit(rounds=2, kinds=("blocks",), reference=BERNOULLI)


def test_gap_shaped_audits_weigh_by_depth_alone_and_say_what_lies_deeper():
    """The weighted depths are those of the missing entries, whatever the odds say."""
    rng = np.random.default_rng(0)
    mask = np.ones((20, 30, 30), bool)
    mask[:, :12, :12] = False
    noise = np.where(mask, rng.normal(size=mask.shape), np.nan)
    observed = ObservedTensor.of(noise, axis_kinds=dict.fromkeys(range(3), "ordered"))
    missing = depth(observed.mask, observed.axes, np.ones(3))[observed.missing]
    count = 5000
    shallow = rng.choice(np.arange(1.0, 9.0), count, p=np.array([8, 7, 6, 5, 4, 3, 2, 1]) / 36)
    nothing = np.zeros((1, count))
    sample = Sample(
        "moved",
        np.arange(count),
        log_weights=9.0 * rng.normal(size=count),
        depth=shallow,
        covered=nothing > 0,
        width=nothing,
    )
    logs, _, untested = _weights([sample], observed, pooled=True)
    weight = np.exp(logs)
    for edge in (2.5, 4.5, 6.5):
        assert weight[shallow < edge].sum() / weight.sum() == pytest.approx(np.mean(missing < edge), abs=0.06)
    assert untested == pytest.approx(np.mean(missing > 8.0)) and untested > 0.01


def test_the_verdict_begins_with_the_entries_that_were_not_audited():
    field = simulate.tec_like((16, 20, 16), seed=101)
    fitted = corten.ConformalCompleter("smooth", "uniform", corten.GapCalibration(6)).fit(field.observed)
    audit = fitted.audit(rounds=3, levels=(0.9,))
    assert "Cannot tell" not in replace(audit, untested=0.0).verdict()
    assert audit.untested >= np.mean(fitted.calibrated.beyond[fitted.observed.missing])  # those that are flagged
    for share, words in ((0.21, "21%"), (0.001, "less than 1%")):
        other = replace(audit, untested=share)
        assert other.verdict().startswith(f"Cannot tell for {words} of the missing entries")
        assert str(other).splitlines()[1].strip().startswith("Cannot tell")


def test_few_rounds_cannot_tell_and_a_share_far_below_is_said():
    kind, text = conclusion(0.9, 0.468, error=0.25, rounds=3, tolerance=0.01)
    assert kind == "warn" and "3 rounds cannot tell" in text and "far below" in text and "no evidence" not in text
    assert conclusion(0.9, 0.468, error=0.15, rounds=20, tolerance=0.01) == (
        "warn",
        "under-coverage; the intervals are too narrow.",
    )
    kind, text = conclusion(
        0.9, 0.85, error=0.05, rounds=3, tolerance=0.01
    )  # 4.3 standard errors, as there are two degrees of freedom
    assert kind == "info" and "between 63% and 100%" in text and "far below" not in text
    assert conclusion(0.9, 0.89, error=0.02, rounds=20, tolerance=0.01)[0] == "good"
    assert conclusion(0.9, 0.99, error=0.02, rounds=20, tolerance=0.01)[0] == "info"
