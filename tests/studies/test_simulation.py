"""The studies: cells that answer the same anywhere, a store that survives a kill, tables that say when we differ."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from math import isnan
from pathlib import Path

import numpy as np
import pytest

from benchmarks.dense import dense_contractions
from corten.lowrank import Stop, TensorTrain
from corten.propensity import IsingPropensity, Recipe
from studies import comparison, experiments, runner
from studies.cells import Cell, seed_of
from studies.claims import claims
from studies.comparison import Summary, differs, holm, over_settings, paired, summarise
from studies.conformal_cell import settings_of
from studies.draws import ensure_chain, mask_of, parameter_of, training_of
from studies.estimators import model_of, weight_error
from studies.figure_tables import pooled, tables_of
from studies.figures import draw
from studies.paper_numbers import METHODS, SCORES, SELECTION, TEC
from studies.peers import bernoulli_loss, has_gcp, tt_svd
from studies.presets import PRESETS, preset_named
from studies.readings import READINGS, readings_table
from studies.report import page
from studies.simulation import PARTS, part_named
from studies.store import Store
from studies.tables import Beside, Table
from studies.timing import dense_loss

pytest.importorskip("pyarrow")

SMALL = {"d": 8, "rank": 2, "draw": 0}


def cells(number: int, experiment: str = "counted") -> list[Cell]:
    return [Cell.of(experiment, k, model="bernoulli", **SMALL) for k in range(number)]


def test_what_is_stored_is_not_run_again(tmp_path: Path, counted: list[int]) -> None:
    store = Store(tmp_path)
    first = runner.run_cells(cells(3), store)
    again = runner.run_cells(cells(5), store)
    assert (first.done, first.kept, again.done, again.kept) == (3, 0, 2, 3)
    assert counted == [0, 1, 2, 3, 4]
    assert [row["value"] for row in store.rows("counted")] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_run_that_breaks_keeps_what_was_finished(
    tmp_path: Path, counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = experiments.EXPERIMENTS["counted"]

    def interrupted(cell: Cell, folder: Path | None) -> list[dict[str, object]]:
        if cell.repetition == 2:
            raise KeyboardInterrupt
        return kind(cell, folder)

    monkeypatch.setitem(experiments.EXPERIMENTS, "counted", interrupted)
    with pytest.raises(KeyboardInterrupt):
        runner.run_cells(cells(4), Store(tmp_path))
    assert counted == [0, 1]
    monkeypatch.setitem(experiments.EXPERIMENTS, "counted", kind)
    assert runner.run_cells(cells(4), Store(tmp_path)).done == 2
    assert counted == [0, 1, 2, 3]


def test_a_killed_process_loses_only_what_was_under_way(tmp_path: Path) -> None:
    script = (
        "import sys, time\n"
        "from studies import experiments, runner\n"
        "from studies.cells import Cell\n"
        "from studies.store import Store\n"
        "def run(cell, folder):\n"
        "    if cell.repetition == 2: time.sleep(600)\n"
        "    return [{'value': 1.0}]\n"
        "experiments.EXPERIMENTS['counted'] = run\n"
        "cells = [Cell.of('counted', k, model='bernoulli', d=8, rank=2, draw=0) for k in range(4)]\n"
        "runner.run_cells(cells, Store(sys.argv[1]))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], cwd=Path(experiments.__file__).parents[1])
    store, deadline = Store(tmp_path), time.monotonic() + 600
    while cells(2)[1] not in store and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert [cell in store for cell in cells(4)] == [True, True, False, False]
    assert len(store.rows("counted")) == 2


def test_a_cell_that_fails_is_reported_and_does_not_stop_the_rest(
    tmp_path: Path, counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = experiments.EXPERIMENTS["counted"]

    def fragile(cell: Cell, folder: Path | None) -> list[dict[str, object]]:
        if cell.repetition == 1:
            raise ValueError("no such luck")
        return kind(cell, folder)

    monkeypatch.setitem(experiments.EXPERIMENTS, "counted", fragile)
    outcome = runner.run_cells(cells(3), Store(tmp_path))
    assert outcome.done == 2
    assert list(outcome.failed.values()) == ["ValueError: no such luck"]
    assert cells(3)[1] not in Store(tmp_path)


def test_progress_ends_at_one_and_never_goes_back(tmp_path: Path, counted: list[int]) -> None:
    shares: list[float] = []
    runner.run_cells(cells(4), Store(tmp_path), tell=lambda cell, share, left: shares.append(share))
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)


def test_half_written_files_are_not_taken_for_results(tmp_path: Path) -> None:
    store, cell = Store(tmp_path), cells(1)[0]
    store.write(cell, [{"value": 1.0}], seconds=0.1)
    (tmp_path / "cells" / "counted" / ".0123.partial").write_bytes(b"PAR1 cut short")
    assert len(store.rows("counted")) == 1


def test_a_stored_cell_says_what_it_is_and_by_which_code(tmp_path: Path) -> None:
    from pyarrow import parquet

    store, cell = Store(tmp_path), Cell.of("counted", 0, d=8, rank=2, model="ising", working=(1, 2))
    store.write(cell, [{"value": 1.0}, {"value": 2.0, "more": "words"}], seconds=0.1)
    (file,) = (tmp_path / "cells" / "counted").glob("*.parquet")
    facts = parquet.read_schema(file).metadata
    assert json.loads(facts[b"cell"])["working"] == [1, 2]
    assert facts[b"version"].startswith(b"0.")
    assert [row["more"] for row in store.rows("counted")] == [None, "words"]


@pytest.mark.parametrize("model", ["bernoulli", pytest.param("ising", marks=pytest.mark.slow)])
def test_the_same_cell_gives_the_same_numbers(tmp_path: Path, model: str) -> None:
    chain = {"burn_in": 10, "thin": 5} if model == "ising" else {}
    cell = Cell.of("conformal", 1, d=10, rank=2, model=model, draw=0, scores=True, **chain)
    first = experiments.run_cell(cell, tmp_path)
    again = experiments.run_cell(cell, None)
    for one, other in zip(first, again, strict=True):
        for name, value in one.items():
            if name != "seconds":
                assert value == other[name] or (isnan(value) and isnan(other[name])), name
    assert {(row["method"], row["score"]) for row in first} >= {("unweighted", "absolute"), ("default", "signed")}
    assert all(0 <= row["coverage90"] <= 100 for row in first)


def test_samples_of_a_chain_do_not_depend_on_how_many_are_drawn(tmp_path: Path) -> None:
    def at(k: int) -> Cell:
        return Cell.of("conformal", k, model="ising", burn_in=10, thin=5, **SMALL)

    ensure_chain(at(0), 3, tmp_path)
    for k in range(3):
        assert np.array_equal(mask_of(at(k), tmp_path), mask_of(at(k), None))
    assert not np.array_equal(mask_of(at(0), tmp_path), mask_of(at(1), tmp_path))


def test_all_experiments_of_a_cell_train_on_the_same_entries() -> None:
    cell = Cell.of("conformal", 0, model="bernoulli", **SMALL)
    mask = mask_of(cell)
    for setting in settings_of(cell, parameter_of(cell), mask, rank=1):
        assert np.array_equal(setting.plan.rounds[0].train, training_of(cell, mask))


def test_cells_differ_by_every_parameter_and_by_nothing_else() -> None:
    one = Cell.of("conformal", 0, d=40, rank=3, model="ising")
    assert one.key == Cell.of("conformal", 0, model="ising", rank=3, d=40).key
    others = [
        Cell.of("conformal", 1, d=40, rank=3, model="ising"),
        Cell.of("ranks", 0, d=40, rank=3, model="ising"),
        Cell.of("conformal", 0, d=40, rank=3, model="ising", draw=1),
    ]
    assert len({one.key, *(cell.key for cell in others)}) == 4
    assert seed_of("a", 1) != seed_of("a", 2)
    assert not np.array_equal(parameter_of(others[2]), parameter_of(one))


def test_parts_share_cells() -> None:
    standard = PRESETS["standard"]
    coverage = {cell for cell in PARTS["coverage"].cells(standard) if cell.experiment == "conformal"}
    assert set(PARTS["scores"].cells(standard)) < coverage
    assert {cell for cell in coverage if cell["draw"] == 0} <= set(PARTS["landscape"].cells(standard))


def test_the_papers_estimator_is_one_recipe() -> None:
    from corten.propensity.fitting import Fitter

    assert Fitter(IsingPropensity.paper(), None, None, 0.7, [None]).recipe() == Recipe.paper()  # type: ignore[arg-type]
    assert Recipe.paper().stopping() == Stop(relative_change=1e-3, evaluations=2000)


def test_readings_of_the_paper_differ_in_how_strong_the_missingness_is() -> None:
    found = {}
    for name in READINGS:
        cell = Cell.of("reading", 0, d=18, rank=3, reading=name, parameters=8)
        rows = experiments.run_cell(cell)
        found[name] = np.mean([row["miscoverage"] for row in rows if row["model"] == "bernoulli"])
        assert len(rows) == 16
    assert max(found, key=lambda name: found[name]) == "both standard deviations"
    assert found["both standard deviations"] > 1.3 * found["both variances"]
    (table,) = readings_table([{**dict(cell.parameters), **row} for row in rows])
    assert [row[-1] for row in table.rows] == [8, 8]


def test_presets_grow_and_full_is_the_paper() -> None:
    counts = [sum(len(part.cells(PRESETS[name])) for part in PARTS.values()) for name in ("smoke", "standard", "full")]
    assert counts == sorted(counts)
    full = preset_named("full")
    assert (full.repetitions, max(full.sizes), full.landscape) == (30, 100, tuple(range(2, 16)))
    assert full.burn_in + full.thin * full.repetitions == 40_000
    standard = preset_named("standard")
    assert (standard.repetitions, max(standard.sizes)) == (10, 60)
    with pytest.raises(ValueError, match="smoke, standard, full"):
        preset_named("huge")
    with pytest.raises(ValueError, match="coverage"):
        part_named("nothing")


def test_the_papers_numbers_are_all_there() -> None:
    assert len(SELECTION) == 2 * 2 * 4 * 4
    assert len(METHODS) == 4 * 5
    assert len(SCORES) == 2 * 2 * 4
    assert all(len(row) == 5 for row in SCORES.values())
    assert len(TEC) == 3
    # tables of the paper that show the same experiment agree to their printed digits
    for (d, model, method), (constant, adversarial, _) in METHODS.items():
        if method in ("unweighted", "oracle", "RGrad"):
            column = ("unweighted", "oracle", "RGrad").index(method)
            assert SCORES["constant", model, d][column][0] == pytest.approx(constant[0], abs=0.006)
            assert SCORES["adversarial", model, d][column][0] == pytest.approx(adversarial[0], abs=0.06)


def test_a_mark_needs_two_joint_standard_errors() -> None:
    paper = (1.0, 0.3)  # its error: 0.3 / sqrt(30) = 0.055
    assert differs(Summary(1.2, 0.3, 0.09, 10), paper) == ""
    assert differs(Summary(1.3, 0.3, 0.09, 10), paper) == "higher"
    assert differs(Summary(0.7, 0.3, 0.09, 10), paper) == "lower"
    assert differs(Summary(1.3, 0.3, 0.09, 10, draws=5, between=0.2), paper) == ""
    assert differs(Summary(9.0, float("nan"), float("nan"), 1), paper) == ""
    assert differs(None, paper) == differs(Summary(1.3, 0.3, 0.09, 10), None) == ""
    assert str(Beside(Summary(1.3, 0.3, 0.09, 10), paper)) == "1.3 (0.3) ↑"


def test_the_spread_between_parameters_enters_the_error() -> None:
    rng = np.random.default_rng(0)
    rows = [{"x": 10.0 * draw + rng.normal(), "draw": draw, "repetition": k} for draw in range(5) for k in range(200)]
    found = summarise(rows, "x")
    assert found is not None
    assert found.sd == pytest.approx(1.0, abs=0.1)
    assert found.between == pytest.approx(np.std([0, 10, 20, 30, 40], ddof=1), rel=0.05)
    assert found.error == pytest.approx(found.between / np.sqrt(5), rel=0.01)


def test_pairs_are_of_the_same_cell_and_holm_is_stricter_than_each() -> None:
    first = [{"d": 8, "repetition": k, "x": 1.0 + k} for k in range(4)]
    second = [{"d": 8, "repetition": k, "x": 0.5 + k} for k in (3, 1, 0, 7)]
    found = paired(first, second, "x")
    assert found is not None
    assert (found.mean, found.error, found.count) == (0.5, 0.0, 3)
    assert paired(first[:1], second, "x") is None
    raw = [0.03, 0.2, 0.001]
    assert holm(raw) == pytest.approx([0.06, 0.2, 0.003])


def test_differences_are_tested_between_b_stars() -> None:
    """Repetitions of one B* are not new B*: eighteen pairs of five B* are five differences."""
    many = [{"d": 8, "draw": 0, "repetition": k, "x": 1.0 + 0.01 * k} for k in range(10)]
    rest = [{"d": 8, "draw": draw, "repetition": k, "x": -0.5} for draw in range(1, 5) for k in range(2)]
    found = paired(many + rest, [{**row, "x": 0.0} for row in many + rest], "x")
    assert found is not None
    means = [1.045, -0.5, -0.5, -0.5, -0.5]
    assert (found.mean, found.count, found.draws) == (pytest.approx(np.mean(means)), 18, 5)
    assert found.error == pytest.approx(np.std(means, ddof=1) / np.sqrt(5))
    assert found.larger > 0.5 > found.smaller  # taken as eighteen, the mean would be above zero


def test_settings_far_apart_do_not_hide_that_all_of_them_are_better() -> None:
    """Sizes and ranks are the settings there are, not a sample of settings: their spread is no error of the mean."""
    rng = np.random.default_rng(0)
    rows = [
        {"d": 8, "rank": rank, "model": model, "draw": draw, "repetition": 0, "x": gap + bump}
        for rank, gap in ((2, -0.05), (3, -0.1), (4, -3.0))
        for draw, bump in enumerate(0.01 * rng.normal(size=5))
        for model in ("bernoulli", "ising")
    ]
    zero = [{**row, "x": 0.0} for row in rows]
    found = over_settings(rows, zero, "x")
    assert found is not None and found.smaller < 1e-6
    # both models share their B*: with both of them the error is no smaller
    half = over_settings([row for row in rows if row["model"] == "ising"], zero, "x")
    assert half is not None and found.error == pytest.approx(half.error)
    assert over_settings([], [], "x") is None
    # settings weigh the same, however often each was repeated
    more = [{**row, "repetition": k} for row in rows for k in range(1, 9) if row["model"] == "ising"]
    uneven = [{**row, "x": row["x"] + (row["model"] == "ising")} for row in rows + more]
    again = over_settings(uneven, [{**row, "x": 0.0} for row in uneven], "x")
    assert again is not None and again.mean == pytest.approx(found.mean + 0.5)


def test_worse_cells_are_called_worse() -> None:
    rng = np.random.default_rng(1)
    base = {"d": 40, "rank": 3, "draw": 0, "score": "absolute", "model": "ising"}
    rows = []
    for k in range(10):
        for noise, harm in (("constant", 1.0), ("adversarial", -1.0)):
            level = rng.normal()
            for method, shift in (("plain", 0.0), ("default", harm)):
                value = level + shift + 0.1 * rng.normal()
                rows.append(
                    {
                        **base,
                        "repetition": k,
                        "noise": noise,
                        "method": method,
                        "miscoverage": value,
                        "relative_error": value,
                    }
                )
    (table,) = pooled({"conformal": rows})
    verdicts = {(row[0], row[4]): row[-1] for row in table.rows}
    assert verdicts["mis-coverage %", "constant"] == "WORSE"
    assert verdicts["mis-coverage %", "adversarial"] == "better"
    assert "1 cell(s) significantly worse" in table.notes[-1]


def test_claims_say_no_where_they_do_not_hold() -> None:
    base = {"d": 40, "rank": 3, "draw": 0, "score": "absolute", "model": "ising", "noise": "adversarial"}
    rows = [
        {**base, "repetition": k, "method": method, "miscoverage": value + 0.01 * k}
        for method, value in (("unweighted", 15.0), ("oracle", 0.5), ("plain", 1.0), ("default", 9.0))
        for k in range(3 if method == "oracle" else 6)
    ]
    ranks = [
        {"criterion": "held-out", "model": "ising", "d": 40, "rank": 5, "repetition": k, "chosen": c}
        for k, c in enumerate((5.0, 4.0))
    ]
    found = {row[0]: row[1:] for row in claims({"conformal": rows, "ranks": ranks}).rows}
    holds = {str(claim).split(" ")[0]: answer for claim, (answer, _) in found.items()}
    assert (holds["unweighted"], holds["oracle"], holds["plain"], holds["default"]) == ("yes", "too few", "yes", "NO")
    assert found["held-out takes the true rank (Ising, d=40, r=3 and 5)"] == ("NO", "r=5: 1 of 2")


def test_tables_are_readable_as_csv() -> None:
    import csv

    columns = ("d", "paper", "ours", "gap")
    gap = comparison.of_gaps(np.array([0.1, 0.2, 0.3]))
    table = Table("t", "T", "tab:x", columns, ((40, (1.0, 0.2), Beside(Summary(2.0, 0.1, 0.03, 10), (1.0, 0.2)), gap),))
    head, line = csv.reader(table.csv().splitlines())
    found = dict(zip(head, line, strict=True))
    assert (found["paper sd"], found["ours"], found["ours differs"], found["gap n"]) == ("0.2", "2", "higher", "3")


def test_delta_is_a_total_variation() -> None:
    rng = np.random.default_rng(0)
    true, other = rng.normal(size=(2, 60))
    calibration, missing = np.arange(50), np.arange(50, 60)
    delta = weight_error(other, true, calibration, missing, seed=0, tests=1000)
    by_hand = []
    for s in missing:
        both = np.append(calibration, s)
        a, b = np.exp(other[both]), np.exp(true[both])
        by_hand.append(0.5 * np.abs(a / a.sum() - b / b.sum()).sum())
    assert delta == pytest.approx(np.mean(by_hand))
    assert weight_error(true + 3.0, true, calibration, missing, seed=0) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("model", ["bernoulli", "ising"])
def test_the_dense_likelihood_is_the_engines(model: str) -> None:
    from corten.engine import as_engine

    rng = np.random.default_rng(0)
    spins = np.where(rng.random((5, 6, 7)) < 0.5, 1, -1).astype(np.int8)
    point = TensorTrain.random((5, 6, 7), 2, seed=1) * 3.0
    frame = point.frame()
    loss, contractions = as_engine(1).mask_pass(spins, model_of(model, spins.shape), 0.7).loss_and_contractions(frame)
    dense, gradient = dense_loss(point.to_dense(), spins.astype(np.float64), model)
    assert dense == pytest.approx(loss, rel=1e-5)
    for ours, theirs in zip(dense_contractions(frame, gradient), contractions):
        assert np.allclose(ours, theirs, atol=1e-4)


def test_the_bernoulli_loss_has_its_derivative() -> None:
    eta = np.linspace(-30, 30, 61)
    for observed in (0.0, 1.0):
        seen = np.full_like(eta, observed)
        step = 1e-5
        slope = (bernoulli_loss(seen, eta + step)[0] - bernoulli_loss(seen, eta - step)[0]) / (2 * step)
        assert np.allclose(slope, bernoulli_loss(seen, eta)[1], atol=1e-6)


def test_tt_svd_keeps_a_low_rank_tensor_and_cuts_a_full_one() -> None:
    low = TensorTrain.random((5, 6, 7), 2, seed=0).to_dense()
    assert np.allclose(tt_svd(low, 2), low)
    full = np.random.default_rng(0).normal(size=(5, 6, 7))
    assert np.linalg.matrix_rank(tt_svd(full, 2).reshape(5, -1)) == 2


@pytest.mark.skipif(not has_gcp(), reason="needs pyttb (extra peers)")
def test_generalized_cp_lowers_its_loss() -> None:
    from studies.peers import gcp_run

    train = np.random.default_rng(0).random((6, 6, 6)) < 0.4
    start = bernoulli_loss(train.astype(float), np.zeros(train.shape))[0].sum()
    point, loss, iterations = gcp_run(train, 2, seed=0, iterations=30)
    assert loss < start
    assert iterations >= 1
    assert bernoulli_loss(train.astype(float), point.to_dense())[0].sum() == pytest.approx(loss, rel=1e-6)


def test_tables_figures_and_page_come_from_what_is_stored(tmp_path: Path) -> None:
    store, tiny = Store(tmp_path / "store"), PRESETS["tiny"]
    rng = np.random.default_rng(0)
    for cell in PARTS["coverage"].cells(tiny):
        if cell.experiment == "reading":
            store.write(cell, experiments.run_cell(cell), seconds=0.1)
            continue
        rows = [
            {
                "noise": noise, "method": method, "score": score, "half_width90": 1.0, "infinite90": 0.0,
                "miscoverage": rng.uniform(0.1, 2), "coverage90": rng.uniform(85, 95), "coverage95": 95.0,
                "effective_size": 100.0, "relative_error": rng.uniform(0.2, 0.4),
                "chosen_rank": 2.0, "weight_error": 0.1, "seconds": 0.1,
            }
            for noise in ("constant", "adversarial")
            for method in ("unweighted", "oracle", "plain", "default")
            for score in ("absolute", "normalized", "signed")
        ]  # fmt: skip
        store.write(cell, rows, seconds=0.1)
    data = {"conformal": store.rows("conformal")}
    for part in ("coverage", "scores", "landscape", "theory", "methods", "estimation"):
        assert all(table.rows for table in tables_of(part, data)[:1]), part
    written = draw("coverage", data, tmp_path / "figures")
    assert {file.suffix for file in written} == {".png", ".svg"}
    assert all(file.stat().st_size > 1000 for file in written)
    text = page(tiny, store, tmp_path / "docs").read_text()
    assert "Average mis-coverage" in text
    assert "the reading, and the draw of B*" in text
    state = {line.split(" | ")[0].strip("| "): line.split(" | ")[1:] for line in text.splitlines() if " of " in line}
    assert state["coverage"][0] == "8 of 8"
    assert state["selection"][0] == "0 of 4"
    assert state["methods"][1].startswith("2 of ")
    assert (tmp_path / "docs" / "results" / "coverage.csv").exists()


def test_the_command_lists_runs_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from studies.__main__ import main

    def quick(cell: Cell, folder: Path | None) -> list[dict[str, object]]:
        return [{"criterion": name, "chosen": 2.0} for name in ("P-AIC", "P-BIC", "held-out")]

    def said(*words: str) -> str:
        assert main(words) == 0
        return capsys.readouterr().out

    monkeypatch.setitem(experiments.EXPERIMENTS, "ranks", quick)
    assert set(json.loads(said("list", "--json"))) == set(PARTS)
    assert all(name in said("list") for name in PARTS)
    words = ["simulation", "--part", "selection", "--preset", "tiny", "--output", str(tmp_path), "--jobs", "1"]
    first, again = (json.loads(said(*words, "--json")) for _ in range(2))
    assert (first["done"], again["done"], again["kept"]) == (4, 0, 4)
    assert any(file.endswith("selection.md") for file in first["files"])
    said("report", "--input", str(tmp_path), "--preset", "tiny", "--output", str(tmp_path / "docs"))
    assert main(["report", "--input", str(tmp_path / "nowhere")]) == 2
    assert "run python -m studies simulation" in capsys.readouterr().err
    assert "Ranks chosen" in (tmp_path / "docs" / "results.md").read_text()


@pytest.mark.slow
def test_processes_give_the_same_numbers_as_one(tmp_path: Path) -> None:
    some = [Cell.of("conformal", k, d=10, rank=2, model="bernoulli", draw=0) for k in range(3)]
    for jobs in (1, 2):
        assert not runner.run_cells(some, Store(tmp_path / str(jobs)), jobs).failed
    values = [[row["miscoverage"] for row in Store(tmp_path / str(jobs)).rows("conformal")] for jobs in (1, 2)]
    assert values[0] == values[1]
