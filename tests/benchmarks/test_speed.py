"""The benchmark's plain versions are right, and its tables show what was missed."""

import numpy as np
import pytest

from benchmarks.cases import CASES, Row, engine_for
from benchmarks.dense import algorithm_two, dense_contractions, dense_pass
from benchmarks.run import markdown, met, run_cases, write, write_page
from corten.lowrank import TensorTrain


def test_the_plain_pass_and_the_fused_pass_agree():
    training = np.random.default_rng(0).random((9, 8, 7)) < 0.4
    point = TensorTrain.random(training.shape, 2, 1) * 5.0
    w = np.where(training, 1.0, -1.0)
    loss, gradient = dense_pass(point.to_dense(), w, 1 / 15, 0.7)
    fused_loss, contractions = engine_for(training).loss_and_contractions(point.frame())
    assert fused_loss == pytest.approx(loss, rel=1e-5)
    for have, want in zip(contractions, dense_contractions(point.frame(), gradient)):
        np.testing.assert_allclose(have, want, atol=1e-4 * np.abs(want).max() + 1e-5)


def test_the_plain_algorithm_stops_at_its_tolerance():
    training = np.random.default_rng(0).random((12, 12, 12)) < 0.4
    point, iterations = algorithm_two(training, 2, 1 / 15, 0.7)
    assert 10 < iterations < 1000
    assert point.rank == (2, 2)


def test_tables_show_wins_and_losses(tmp_path):
    rows = [Row("a", 1.0, 8.0, "x", "6"), Row("b", 2.0, 1.0, "y", "1/3"), Row("c", 2.0, 1.0, "z", "1.7")]
    assert [met(row) for row in rows] == ["yes", "yes", "no"]
    assert "| 0.5 |" in markdown(rows)
    for path in write(rows, tmp_path):
        assert path.stat().st_size > 0
    page = write_page(rows, tmp_path / "run", tmp_path / "page.md").read_text()
    assert "| c | 2.00 s | 1.00 s | z | 0.5 | 1.7 | no |" in page and "(run/bench.png)" in page


def test_a_quick_case_runs_and_an_unknown_one_is_named():
    assert len(run_cases(["sampling"], quick=True)) == 1
    with pytest.raises(ValueError, match=", ".join(CASES)):
        run_cases(["everything"])
