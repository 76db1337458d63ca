"""The study of real fields, on the data beside the project where they are."""

import re
from dataclasses import replace

import numpy as np
import pytest

from corten.completer import ConformalCompleter
from studies import field_page, fields
from studies.field_figures import draw_bins, draw_maps
from studies.field_sets import SETS, FieldSet, data_folder, load_set


def small_field():
    rng = np.random.default_rng(0)
    i, j, k = np.indices((10, 9, 8))
    truth = np.sin(i / 3) + np.cos(j / 4) + 0.1 * k + 0.05 * rng.normal(size=i.shape)
    mask = rng.random(truth.shape) < 0.6
    return FieldSet("small", truth, mask, ~mask, ("a", "b", "c"))


def test_a_set_is_scored_with_widths_and_finite_share_beside_coverage(tmp_path):
    one = small_field()
    completer = ConformalCompleter("tucker", "uniform", "random")
    row, result = fields.evaluate("small", one, completer, "plain")
    assert 0 < row.coverage90 <= 100 and row.width90 > 0 and row.infinite90 == 0
    assert row.mae < np.abs(one.truth - one.truth[one.mask].mean())[~one.mask].mean()
    table = fields.markdown([row])
    assert "infinite %" in table and "| small | plain |" in table
    assert all(path.stat().st_size for path in fields.write_rows([row], tmp_path))
    assert draw_bins(one, {"plain": result}, tmp_path / "bins.png").stat().st_size > 1000
    assert draw_maps(one, result, tmp_path / "maps.png").stat().st_size > 1000


def test_the_grid_search_tries_every_strength_in_every_neighbourhood(monkeypatch, tmp_path):
    monkeypatch.setattr(fields, "load_set", lambda name, folder: small_field())
    monkeypatch.setattr(fields, "PAPER_RANK", 2)
    told = []
    rows = fields.validate("small", tmp_path, (0.05, "learned"), ("adjacent", "adjacent:0,1"), tell=told.append)
    assert told == rows
    assert [row.method for row in rows[::2]] == ["Ising 0.05*xy, adjacent", "Ising 0.05*xy, adjacent:0,1"]
    for row, around in zip(rows[1::2], ("adjacent", "adjacent:0,1")):
        assert re.fullmatch(rf"Ising learned -?\d+(\.\d+)?(e-\d+)?\*xy, {around}", row.method), row.method
    best = min(rows, key=lambda row: row.miscoverage)
    assert f"smallest mis-coverage: {best.method}" in fields.verdict(rows)
    infinite = [replace(row, infinite90=50.0) for row in rows]
    assert "none has fewer" in fields.verdict(infinite)
    assert "grid search" not in field_page.write_page(rows, tmp_path / "page.md", tmp_path, "x").read_text()
    fields.write_rows(rows, tmp_path, fields.VALIDATION)
    assert fields.read_rows(tmp_path) == [] and fields.read_rows(tmp_path, fields.VALIDATION) == rows
    text = field_page.write_page([], tmp_path / "page.md", tmp_path, "x").read_text()
    assert fields.verdict(rows) in text and fields.markdown(rows) in text


def test_unknown_names_and_absent_data_are_named(tmp_path):
    with pytest.raises(ValueError, match="tec-america-1"):
        load_set("mars", tmp_path)
    with pytest.raises(FileNotFoundError, match="--data"):
        load_set("ndvi-20", tmp_path)
    with pytest.raises(FileNotFoundError, match="--data"):
        data_folder(tmp_path / "nowhere")


@pytest.mark.parametrize("name", SETS)
def test_every_set_loads_where_the_data_are(name):
    try:
        folder = data_folder(None)
    except FileNotFoundError as absent:
        pytest.skip(f"the shared data are not here: {absent}")
    one = load_set(name, folder)
    assert one.truth.shape == one.mask.shape and len(one.axes) == one.truth.ndim
    assert one.score.any() and not (one.score & one.mask).any()
    assert np.isfinite(one.truth[one.mask]).all()


def test_a_stopped_run_goes_on_where_it_was_and_the_page_names_what_is_missed(monkeypatch, tmp_path):
    counted = []

    def evaluate(name, one, completer, method):
        counted.append((name, method, completer.seed))
        numbers = 0.3, 1.0, 90.0, 95.0, 2.5, 0.0, 3.0, 9e3, 60.0, 110.0
        return fields.FieldRow(name, method, completer.seed, *numbers, "now"), None

    monkeypatch.setattr(fields, "evaluate", evaluate)
    monkeypatch.setattr(fields, "load_set", lambda name, folder: small_field())
    monkeypatch.setattr(fields, "code_version", lambda: "now")
    rows = fields.run_fields(["tec-america-1"], ["corten"], 1, tmp_path)
    fields.write_rows(rows, tmp_path)
    again = fields.run_fields(["tec-america-1"], ["corten"], 2, tmp_path, done=fields.read_rows(tmp_path))
    assert counted == [("tec-america-1", "corten", 0), ("tec-america-1", "corten", 1)]
    assert again[0] == rows[0]
    stale = [replace(rows[0], version="before")]
    fields.run_fields(["tec-america-1"], ["corten"], 1, tmp_path, done=stale)
    assert len(counted) == 3
    target = field_page.write_page(again, tmp_path / "page.md", tmp_path, "python -m studies tec")
    text = target.read_text()
    assert "seed 0: width 2.5; seed 1: width 2.5" in text and "| ndvi-50 | none run |" in text
    fine = replace(rows[0], width90=1.5)
    assert field_page.ASKED["tec-america-1"].missed(fine) == []


def test_data_are_looked_for_beside_the_repository() -> None:
    from studies import field_sets

    assert (field_sets.ROOT / "pyproject.toml").is_file()
