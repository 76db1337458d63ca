"""Faults, with real processes and real signals: one of each here, many in `make reliability`.

A signal at a random moment tests another moment on every machine, so these tests are slow ones (`make test-all`).
"""

import functools
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit

import corten
from corten.checkpoint import fingerprint
from corten.completion.protocol import Fill, PreparedMix
from corten.io.whole import whole_file
from reliability import faults
from reliability.processes import GAPS, Missed, NotHere, Running, command, data, fitted, sooner, write

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks and signals as Linux has them"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.mark.slow
@pytest.mark.parametrize("fault", faults.FAULTS.values(), ids=lambda fault: fault.__name__)
def test_survived(fault):
    for k in range(20):
        try:
            return faults.strike(fault, f"test {k}")
        except NotHere as why:
            pytest.skip(str(why))
        except Missed:
            sooner()
    pytest.fail("it never struck")


def test_faults_that_missed_are_drawn_again_and_counted_apart(monkeypatch):
    def fault(random, folder):
        if random.random() < 0.5:
            raise Missed
        assert random.random() < 0.5, "broken"

    def late(random, folder):
        faults.ended.WAITS.append((1.6, 0.5))

    def elsewhere(random, folder):
        raise NotHere("no such machine")

    monkeypatch.setattr(faults, "FAULTS", {"a": fault, "b": late, "c": elsewhere})
    found = faults.many_faults(30, 0)
    one = found["faults"]["a"]
    assert one["struck"] == 30 and one["missed"] > 0 and 0 < len(one["failed"]) == 30 - one["survived"]
    assert found["faults"]["b"]["survived"] == 0 and found["faults"]["c"]["not_here"] == "no such machine"
    assert (found["slowest_interrupt"], found["stall"]) == (1.6, 0.5)
    monkeypatch.setattr(faults.ended, "WAITS", [])


@pytest.mark.slow
def test_an_interrupted_program_ends_at_once(tmp_path):
    """The program as a shell starts it, from its first moments on."""
    np.save(tmp_path / "in.npy", data())
    program = [sys.executable, "-c", "from corten.cli.app import main; main()", "complete", str(tmp_path / "in.npy")]
    running = subprocess.Popen(
        [*program, "-o", str(tmp_path / "out.nc"), *GAPS], stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )  # fmt: skip
    while b"numba" not in Path(f"/proc/{running.pid}/maps").read_bytes() and running.poll() is None:
        time.sleep(0.02)
    running.send_signal(signal.SIGINT)
    _, words = running.communicate(timeout=600)  # a tenth of a second on an idle machine
    assert running.returncode == 130 and "Traceback" not in words, words
    assert [path.name for path in tmp_path.iterdir()] == ["in.npy"]


def test_an_interrupt_while_the_program_is_being_loaded_is_quiet(tmp_path):
    """Struck from within the first library that the program loads; what comes before is the start of Python itself."""
    (tmp_path / "typer.py").write_text("import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)")
    about = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    entry = about["project"]["scripts"]["corten"].replace(":", " import ")
    done = subprocess.run(
        [sys.executable, "-c", f"from {entry}; main()", "info"], stderr=subprocess.PIPE, text=True, timeout=600,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, "corten: stopped; nothing partial was left\n")


def test_an_interrupt_as_soon_as_the_program_listens_is_quiet(tmp_path, monkeypatch):
    start = threading.Thread.start

    def struck(thread):
        start(thread)
        os.kill(os.getpid(), signal.SIGINT)

    def work():
        monkeypatch.setattr(threading.Thread, "start", struck)
        command("info")

    running = Running(tmp_path, work)
    assert running.ended() == 130 and "Traceback" not in running.said(), running.said()


class Counting:
    """A completion that counts its fills in a folder, and stops after as many as the folder says."""

    choices = ()

    def __init__(self, folder):
        self.folder = folder

    def prepare(self, values, mask, axes, seed):
        return self

    def fill(self, values, mask):
        done = len(list(self.folder.glob("fill*")))
        if (self.folder / f"stop{done}").exists():
            raise KeyboardInterrupt
        (self.folder / f"fill{done}").touch(exist_ok=False)
        return Fill(np.where(mask, values, np.nanmean(np.where(mask, values, np.nan))))


def test_a_checkpoint_does_only_what_is_left(tmp_path):
    x, counts = data(), tmp_path / "counts"
    counts.mkdir()
    # Six different rounds: two that hide the same entries would have one file.
    completer = corten.ConformalCompleter(Counting(counts), "uniform", corten.GapCalibration(6), seed=2)
    expected = completer.fit(x).intervals(0.9)
    (counts / "stop10").touch()
    assert len(list(counts.glob("fill*"))) == 7
    with pytest.raises(KeyboardInterrupt), corten.Checkpoint(tmp_path / "kept") as checkpoint:
        completer.fit(x, checkpoint=checkpoint)
    rounds = sorted((tmp_path / "kept").glob("*.round"))
    assert len(rounds) == 3
    rounds[0].write_bytes(rounds[0].read_bytes()[:-9])  # one of them damaged
    (counts / "stop10").unlink()
    with corten.Checkpoint(tmp_path / "kept") as checkpoint:
        found = completer.fit(x, checkpoint=checkpoint).intervals(0.9)
    assert checkpoint.kept == len(rounds) - 1 and len(list(counts.glob("fill*"))) == 10 + 7 - checkpoint.kept
    for name in ("estimate", "lower", "upper"):
        assert np.array_equal(getattr(found, name), getattr(expected, name), equal_nan=True)
    assert not (tmp_path / "kept").exists()


class Stack(Counting):
    def combine(self, members, truth):
        return self

    def mix(self, members):
        return next(iter(members.values()))


def test_a_function_of_the_user_runs_in_one_thread_with_a_checkpoint_too(tmp_path, monkeypatch):
    """Rounds of a stack may run in several threads; only what is a stack looks like one when its rounds are kept."""
    monkeypatch.setenv("CORTEN_THREADS", "4")
    threads, checkpoint = set(), corten.Checkpoint(tmp_path)

    def fill(x):
        threads.add(threading.get_ident())
        return np.nan_to_num(x)

    corten.ConformalCompleter(fill, "uniform", corten.GapCalibration(4)).fit(data(), checkpoint=checkpoint)
    assert threads == {threading.get_ident()}
    for completion, mixes in ((Counting(tmp_path), False), (Stack(tmp_path), True)):
        kept = checkpoint.keeping(completion).prepare(data(), np.isfinite(data()), (), 0)
        assert isinstance(kept, PreparedMix) == mixes


def test_a_checkpoint_of_other_data_or_settings_is_not_used(tmp_path):
    x = data()
    checkpoint = corten.Checkpoint(tmp_path)
    corten.ConformalCompleter("smooth", "uniform", corten.GapCalibration(2)).fit(x, checkpoint=checkpoint)
    for seed, other in ((1, x), (0, x + 1e-12), (0, np.swapaxes(x, 0, 1))):
        again = corten.Checkpoint(tmp_path)
        corten.ConformalCompleter("smooth", "uniform", corten.GapCalibration(2), seed=seed).fit(other, checkpoint=again)
        assert again.kept == 0
    same = corten.Checkpoint(tmp_path)
    corten.ConformalCompleter("smooth", "uniform", corten.GapCalibration(2)).fit(x, checkpoint=same)
    assert same.kept >= 2


def of_text(text, **names):
    """A function as a user's script has it, and as the edited script has it."""
    exec(text, names)
    return names["fill"]


FILL = "def helper(x):\n    return 0\ndef fill(x):\n    return np.where(np.isnan(x), helper(x) + shift[0], x)"


def test_arrays_and_code_are_part_of_what_a_round_is_known_by():
    def known(text, shift=(0,)):
        return fingerprint(of_text(text, np=np, shift=np.array(shift)))

    assert known(FILL) == known(FILL)
    pairs = (("return 0", "return 1"), ("isnan(x)", "isnan(x + 0)"), ("l(x)", "l(x, y=1)"))
    edits = [FILL.replace(*pair) for pair in pairs]
    assert len({known(FILL), known(FILL, [1]), *map(known, edits)}) == 5
    large = np.arange(10_000.0)
    other = large.copy()
    other[5000] += 1  # repr leaves it out
    assert fingerprint({"prior": large}) == fingerprint({"prior": large.copy()}) != fingerprint({"prior": other})
    prior = [corten.KnownPropensity(one.reshape(10, 10, 100)) for one in (large, other)]
    assert fingerprint(prior[0]) != fingerprint(prior[1])

    def closed(one):
        return lambda x: x + one

    assert fingerprint(closed(1)) == fingerprint(closed(1)) != fingerprint(closed(2))
    assert fingerprint(Counting("a")) == fingerprint(Counting("a")) != fingerprint(Counting("b"))


def own_module(folder, name, shift):
    """A module of the user's own, imported anew."""
    (folder / f"{name}.py").write_text(f"def helper(x):\n    return x + {shift}\n")
    sys.modules.pop(name, None)
    importlib.invalidate_caches()
    return importlib.import_module(name)


def wrapped_as_numpys(shift):
    return functools.wraps(np.mean)(lambda x: x + shift)


def with_attribute(shift):
    def fill(x):
        return x + fill.shift

    fill.shift = shift
    return fill


def test_code_behind_wrappers_attributes_and_subclasses_is_compared():
    """What code of an installed package made at run time is not known by the package's version."""
    for made in (
        wrapped_as_numpys, with_attribute, lambda k: functools.singledispatch(lambda x: x + k),
        lambda k: np.ma.array([1.0, 2.0], mask=[k == 1, True]), lambda k: functools.partial(np.add, k),
    ):  # fmt: skip
        assert fingerprint(made(1)) != fingerprint(made(2))
    states = [fingerprint(np.random.default_rng(seed).random) for seed in (0, 0, 1)]  # bound to a state
    assert states[0] == states[1] != states[2]
    with pytest.raises(ValueError, match="it is unknown"):
        fingerprint(np.frompyfunc(wrapped_as_numpys(1), 1, 1))


def test_own_modules_are_compared_by_their_functions_or_refused(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    known = []
    for shift in (1, 1, 2):
        module = own_module(tmp_path, f"own_{len(known)}", shift)
        known.append(fingerprint(of_text("def fill(x):\n    return helper(x)", helper=module.helper)))
        for text in ("def fill(x):\n    return own.helper(x)", f"def fill(x):\n    import {module.__name__} as own"):
            with pytest.raises(ValueError, match=r"the module own_.*same in the next run"):
                fingerprint(of_text(text, own=module))
    assert known[0] == known[1] != known[2]
    fingerprint(of_text("def fill(x):\n    import numpy.linalg\n    return numpy.linalg.svd(x)"))
    fingerprint(of_text("def fill(x):\n    return nanmean(x) + expit(x)", nanmean=np.nanmean, expit=expit))


def test_a_changed_function_or_array_does_its_rounds_again(tmp_path):
    x, kept = data(), []
    for text, shift in ((FILL, 0.0), (FILL, 0.0), (FILL.replace("return 0", "return 1"), 0.0), (FILL, 2.0)):
        function = of_text(text, np=np, shift=np.array([shift]))
        checkpoint = corten.Checkpoint(tmp_path)
        completer = corten.ConformalCompleter(function, "uniform", corten.GapCalibration(2))
        found = completer.fit(x, checkpoint=checkpoint)
        assert np.array_equal(found.estimate, completer.fit(x).estimate)
        kept.append(checkpoint.kept)
    assert kept == [0, 3, 0, 0]


def test_code_that_cannot_be_compared_is_refused_before_the_fit(tmp_path):
    lock = threading.Lock()

    def fill(x):
        with lock:
            return np.where(np.isnan(x), 0, x)

    began = []
    with pytest.raises(ValueError, match=r"lock.*it is unknown whether"):
        corten.ConformalCompleter(fill, "uniform", "random").fit(
            data(), checkpoint=corten.Checkpoint(tmp_path), progress=lambda stage, _: began.append(stage)
        )
    assert not {"completion", "missingness"} & set(began)


def test_only_rounds_that_corten_wrote_are_removed(tmp_path):
    checkpoint = corten.Checkpoint(tmp_path)
    corten.ConformalCompleter("smooth", "uniform", "random").fit(data(), checkpoint=checkpoint)
    assert list(tmp_path.glob("*.round"))
    others = [tmp_path / name for name in ("final.round", "a" * 32 + ".round", "notes.txt")]
    for one in others:
        one.write_text("precious")
    checkpoint.clear()
    assert sorted(tmp_path.iterdir()) == sorted(others)


def test_what_a_killed_program_left_is_cleared_away(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with whole_file(tmp_path / "x.txt") as temporary:
        temporary.write_text("new")
        mine = temporary.name
        left = tmp_path / mine.replace(str(os.getpid()), str(ended.pid))
        left.write_text("half")
        other = tmp_path / f"{mine}.other"  # of another file, and of a program that runs
        other.write_text("not ours")
    with whole_file(tmp_path / "x.txt", overwrite=True) as temporary:
        assert not left.exists()
        temporary.write_text("newer")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([other.name, "x.txt"])
    assert (tmp_path / "x.txt").read_text() == "newer"


def test_a_folder_that_had_stepped_aside_comes_back(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    target = tmp_path / "x.zarr"
    with whole_file(target, store=True) as temporary:
        temporary.mkdir()
        name = temporary.name.replace(str(os.getpid()), str(ended.pid))
    os.replace(target, tmp_path / f"{name}.old")  # killed between the two steps of replacing a folder
    with pytest.raises(FileExistsError), whole_file(target, store=True):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["x.zarr"]


def test_what_threads_write_into_a_discarded_folder_never_becomes_the_file(tmp_path):
    from corten.io.whole import discard_unfinished

    def work():
        def keep_writing():
            while True:
                (temporary / "a").mkdir(parents=True, exist_ok=True)
                (temporary / "a" / f"{time.monotonic_ns()}").write_bytes(b"x")

        with whole_file(tmp_path / "x.zarr", store=True) as temporary:
            for _ in range(4):
                threading.Thread(target=keep_writing, daemon=True).start()
            time.sleep(0.1)
            discard_unfinished()
            os._exit(7)

    for _ in range(5):
        assert Running(tmp_path, work).ended() == 7
        # A thread may run between the removal and the exit; what it creates has a temporary name and goes next time.
        assert not (tmp_path / "x.zarr").exists()
    with whole_file(tmp_path / "x.zarr", store=True) as temporary:
        temporary.mkdir()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".words", "x.zarr"]


def test_a_folder_into_which_a_thread_still_writes_is_removed(tmp_path, monkeypatch):
    """Removal finds one more file on its way, as if a thread had created it a moment before."""
    import shutil

    from corten.io.whole import _remove

    late, real = [tmp_path / "x" / "one", tmp_path / "x" / "two"], shutil.rmtree

    def rmtree(path, ignore_errors):
        if late:
            late.pop().touch()
            return
        real(path, ignore_errors=ignore_errors)

    (tmp_path / "x").mkdir()
    monkeypatch.setattr(shutil, "rmtree", rmtree)
    _remove(tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_an_interrupt_between_the_steps_of_replacing_a_folder_loses_nothing(tmp_path, monkeypatch):
    target, real, calls = tmp_path / "x.zarr", os.replace, []
    with whole_file(target, store=True) as temporary:
        temporary.mkdir()
        (temporary / ".zgroup").touch()
        (temporary / ".zattrs").write_text('{"corten_seed": 0}')

    def replace(one, other):
        calls.append(one)
        if len(calls) == 2:
            raise KeyboardInterrupt
        real(one, other)

    with pytest.raises(KeyboardInterrupt), whole_file(target, overwrite=True, store=True) as temporary:
        temporary.mkdir()
        monkeypatch.setattr(os, "replace", replace)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert left == ["x.zarr", "x.zarr/.zattrs", "x.zarr/.zgroup"]


def test_a_disk_that_fills_while_a_netcdf_file_is_closed_is_named(tmp_path, monkeypatch):
    import xarray as xr

    def full(*_, **__):
        raise RuntimeError("NetCDF: HDF error")

    monkeypatch.setattr(xr.Dataset, "to_netcdf", full)
    with pytest.raises(OSError, match=r"x\.nc could not be written \(NetCDF: HDF error\): the disk may be full"):
        write(tmp_path / "x.nc", fitted().intervals(0.9))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "content",
    [[], {}, {"members": 3, "leverage": False}, {"members": ["a"], "leverage": False}, {"members": []}, None, "text"],
    ids=str,
)
def test_a_forged_round_is_as_good_as_none(tmp_path, content):
    from corten.checkpoint import FORMAT
    from corten.io.archive import write_archive

    fill = Fill(np.ones((2, 3)))
    for arrays in ({"estimate": np.zeros((2, 3))}, {}):
        checkpoint = corten.Checkpoint(tmp_path)
        write_archive(tmp_path / "key.round", FORMAT, content, arrays, overwrite=True)
        assert checkpoint._fill("key", (2, 3), lambda: fill) is fill and checkpoint.kept == 0
    other = {"members": [], "leverage": False}
    write_archive(tmp_path / "key.round", FORMAT, other, {"estimate": np.zeros((3, 2))}, overwrite=True)
    assert checkpoint._fill("key", (2, 3), lambda: fill) is fill and checkpoint.kept == 0
    assert (checkpoint._fill("key", (2, 3), lambda: 1 / 0).estimate == 1).all() and checkpoint.kept == 1
