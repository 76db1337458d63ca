"""The daily job killed before each of its changes of files: every file is the old or the new one, and again is once."""

import hashlib
import os
import shutil
import signal
import sys
import time

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import corten
from corten import io
from corten.cli.app import app
from reliability.processes import Running, command

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks and signals as Linux has them"),
    pytest.mark.filterwarnings("ignore"),
]
COMMANDS = {
    "fill": ("fill", "fit.corten", "day.csv", "-o", "filled.csv", "--overwrite", "--quiet"),
    "verify": ("verify", "given.csv", "late.csv", "--log", "scores.jsonl", "--coverage", "0.9", "--quiet"),
    "update": ("update", "fit.corten", "day.csv", "--quiet"),
}
CHANGED = {"fill": "filled.csv", "verify": "scores.jsonl", "update": "fit.corten"}


def table(first, seed):
    """Hours of five stations with gaps, and their truth; text is read by the program itself, quickly."""
    rng = np.random.default_rng(seed)
    t = np.arange(first, first + 16)[:, None]
    hours = pd.Timestamp("2020-01-01") + pd.to_timedelta(t.ravel(), "h")
    truth = pd.DataFrame(np.sin(t / 4 + np.arange(5)) + 0.1 * rng.normal(size=(16, 5)), hours, list("abcde"))
    truth.index.name = "time"
    return truth.where(rng.random(truth.shape) > 0.3), truth


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A fit, a day with an output and a log of the day before, and late values."""
    folder = tmp_path_factory.mktemp("start")
    calibration = corten.GapCalibration(rounds=4, drawn=0)
    fitted = corten.ConformalCompleter("smooth", "constant", calibration).fit(table(0, 0)[0])
    fitted.save(folder / "fit.corten")
    fitted.verify(table(0, 0)[1], log=folder / "scores.jsonl")
    (new, truth), result = table(16, 1), fitted.fill(table(16, 1)[0])
    new.to_csv(folder / "day.csv")
    truth.to_csv(folder / "late.csv")
    io.write(folder / "given.csv", result)
    io.write(folder / "filled.csv", fitted.fill(new, 0.5))
    shutil.copytree(folder, there := tmp_path_factory.mktemp("warm") / "there")
    for arguments in COMMANDS.values():  # in this process: what the forked ones need is loaded and compiled
        done = CliRunner().invoke(app, located(there, arguments))
        assert done.exit_code == 0, done.output
    return folder


def located(folder, arguments):
    """Arguments with the files in a folder."""
    return [str(folder / one) if one[-1].isalpha() and "." in one else one for one in arguments]


def run(folder, arguments, last=None):
    """Run a command in a forked process that kills itself before its change number `last`; exit code, changes."""
    count = folder.parent / f"{folder.name}.count"

    def change(*_):
        nonlocal done
        if done == last:
            os.kill(os.getpid(), signal.SIGKILL)
        done += 1

    def heard(event, about):
        writes = event == "open" and isinstance(about[2], int) and about[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if (writes or event in ("os.rename", "os.remove")) and str(about[0]).startswith(str(folder)):
            change()

    def work():
        sys.addaudithook(heard)
        flushed, os.fsync = os.fsync, lambda stream: (change(), flushed(stream))
        try:
            command(*located(folder, arguments))
        finally:
            count.write_text(str(done))

    done = 0
    running = Running(folder.parent, work)
    code = running.ended()
    assert code in (0, -signal.SIGKILL), running.said()
    return code, int(count.read_text()) if count.exists() else 0


def state(path):
    """What a file says; damaged ones raise."""
    if path.suffix == ".csv":
        return path.read_bytes()
    if path.suffix == ".jsonl":
        return repr(corten.ScoreLog.read(path).over_time()), len(corten.ScoreLog.read(path).by_step())
    fit = corten.load(path)
    return hashlib.sha256(fit.observed.values.tobytes() + fit.scores.tobytes() + fit.estimate.tobytes()).hexdigest()


@pytest.mark.parametrize("name", COMMANDS)
def test_killed_before_every_change_of_a_file(start, tmp_path, name):
    arguments, changed = COMMANDS[name], CHANGED[name]
    shutil.copytree(start, tmp_path / "once")
    _, changes = run(tmp_path / "once", arguments)
    before, after = (state(folder / changed) for folder in (start, tmp_path / "once"))
    files = sorted(path.name for path in start.iterdir())
    assert before != after and changes >= 3
    found = set()
    for k in range(changes):
        folder = tmp_path / f"killed{k}"
        shutil.copytree(start, folder)
        assert run(folder, arguments, last=k)[0] == -signal.SIGKILL
        found.add(state(folder / changed))
        assert all((folder / one).read_bytes() == (start / one).read_bytes() for one in files if one != changed)
        assert run(folder, arguments)[0] == 0
        assert state(folder / changed) == after
        assert sorted(path.name for path in folder.iterdir()) == files
    assert found == {before, after}


def test_two_programs_that_write_one_log_lose_nothing(start, tmp_path):
    log = tmp_path / "scores.jsonl"
    result, read = corten.load(start / "fit.corten").fill(table(16, 1)[0]), corten.ScoreLog.read

    def slowly(path):
        found = read(path)
        time.sleep(0.02)  # so that the other one reads the same log, if it may
        return found

    def work(first):
        corten.ScoreLog.read = staticmethod(slowly)
        for k in range(first, 12, 2):
            result.verify(table(16, 1)[1], log=log, target=0.5 + k / 100)
            result.verify(table(16, 1)[1], log=log, target=0.7)  # both count the same data

    for one in [Running(tmp_path, lambda first=first: work(first)) for first in (0, 1)]:
        assert one.ended() == 0, one.said()
    found = read(log)
    assert sorted(row.target for row in found.records[:: len(found.over_time())]) == sorted(
        [0.7, *(0.5 + k / 100 for k in range(12))]
    )
    assert [one.name for one in tmp_path.iterdir() if one.name != ".words"] == ["scores.jsonl"]


def test_two_programs_that_update_one_fit_lose_nothing(start, tmp_path):
    fit, load = tmp_path / "fit.corten", corten.load
    shutil.copy(start / "fit.corten", fit)

    def slowly(path):
        found = load(path)
        time.sleep(0.2)  # so that the other one loads the same fit, if it may
        return found

    def work(number):
        corten.load = slowly
        table(16 * number, number)[0].to_csv(tmp_path / f"day{number}.csv")
        command("update", str(fit), str(tmp_path / f"day{number}.csv"), "--window", "48", "--quiet")

    for one in [Running(tmp_path, lambda number=number: work(number)) for number in (1, 2)]:
        assert one.ended() == 0, one.said()
    moved = load(fit).observed
    assert np.array_equal(moved.values[16:], np.concatenate([table(16, 1)[0], table(32, 2)[0]]), equal_nan=True)
    assert not list(tmp_path.glob(".fit*"))
