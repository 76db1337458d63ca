"""What studies keep: cells that notice damage, versions that tell, workers that do not outlive their program."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from studies import experiments, runner
from studies.cells import Cell
from studies.store import Damaged, Store

pytest.importorskip("pyarrow")


def with_root(root: Path = Path(experiments.__file__).parents[1]) -> dict[str, str]:
    """An environment in which other processes find the studies."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}


def cells(number: int) -> list[Cell]:
    return [Cell.of("counted", k, model="bernoulli", d=8, rank=2, draw=0) for k in range(number)]


def test_damage_to_any_byte_of_a_stored_cell_is_noticed(tmp_path: Path, counted: list[int]) -> None:
    store, (cell,) = Store(tmp_path), cells(1)
    runner.run_cells([cell], store)
    (expected,), file = store.rows("counted"), store.file(cell)
    raw = file.read_bytes()
    for k in range(0, len(raw), 3):
        file.write_bytes(raw[:k] + bytes([raw[k] ^ 0x10]) + raw[k + 1 :])
        # Some bytes mean nothing: when it is read all the same, it says what was written.
        assert cell not in store or store.rows("counted") == [expected], k
    file.write_bytes(raw[: len(raw) // 2])
    with pytest.raises(Damaged, match=file.name):
        store.rows("counted")
    outcome = runner.run_cells([cell], store)
    assert (outcome.done, outcome.kept, outcome.damaged) == (1, 0, [file])
    assert store.rows("counted")[0]["value"] == expected["value"]


def test_a_damaged_cell_that_is_not_planned_any_more_is_no_obstacle(tmp_path: Path, counted: list[int]) -> None:
    store, (kept, old) = Store(tmp_path), cells(2)
    runner.run_cells([kept, old], store)
    store.file(old).write_bytes(store.file(old).read_bytes()[:100])
    assert store.gather("counted", [kept]) is not None
    assert [row["value"] for row in store.rows("counted", [kept, old])] == [0.0]


def test_cells_of_before_there_were_checksums_stay_and_get_one(tmp_path: Path, counted: list[int]) -> None:
    from pyarrow import parquet

    store, (cell,) = Store(tmp_path), cells(1)
    store.write(cell, [{"value": 7.0}], seconds=0.1)
    table = parquet.ParquetFile(store.file(cell)).read()
    table = table.set_column(table.schema.get_field_index("version"), "version", [["0.1.0+abcdef0"]])
    facts = {"cell": table.schema.metadata[b"cell"], "version": "0.1.0+abcdef0"}
    parquet.write_table(table.replace_schema_metadata(facts), store.file(cell))
    before = store.rows("counted")
    outcome = runner.run_cells([cell], store)
    assert (outcome.kept, outcome.damaged, counted) == (1, [], [])
    facts = parquet.read_schema(store.file(cell)).metadata
    assert len(facts[b"sha256"]) == 64 and facts[b"version"] == b"0.1.0+abcdef0"
    assert store.rows("counted") == before


def test_the_version_says_when_the_code_is_not_what_was_committed(tmp_path: Path) -> None:
    copy = tmp_path / "studies"
    shutil.copytree(Path(experiments.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    say = "from studies.store import code_version as v; print(v())"

    def said() -> str:
        given = with_root(tmp_path) | {"PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run([sys.executable, "-c", say], env=given, capture_output=True, text=True).stdout.strip()

    who = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
    for asked in (("init", "-q"), ("add", "-A"), (*who, "commit", "-qm", "as it is")):
        subprocess.run(["git", "-C", str(tmp_path), *asked], check=True)
    committed = said()
    assert committed and not committed.endswith("+")
    with (copy / "cells.py").open("a") as stream:
        stream.write("# changed\n")
    assert said() == f"{committed}+"


def test_workers_end_when_the_program_that_started_them_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import os, time\n"
        "from studies import runner\n"
        "def forever(k):\n"
        "    print(os.getpid(), flush=True)\n"
        "    time.sleep(600)\n"
        "if __name__ == '__main__':\n"
        "    with runner.workers(2) as pool:\n"
        "        list(pool.map(forever, range(2)))\n"
    )
    program = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=with_root())
    assert program.stdout is not None
    pids = [int(program.stdout.readline()) for _ in range(2)]
    program.kill()
    program.wait()
    try:
        program.communicate(timeout=600)  # the pipe is closed when the last of them has ended
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
