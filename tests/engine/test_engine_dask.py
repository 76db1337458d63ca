"""The cluster engine against the threads of this machine, which `test_engine` holds against a dense oracle.

Most tests use workers that are threads of this process; those about lost workers start processes and kill one.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

pytest.importorskip("distributed", reason="needs Dask: pip install 'corten[cluster]'")

import dask.array as da
import distributed
import xarray as xr
from test_engine import COUPLINGS, build
from typer.testing import CliRunner

import corten
from corten.cli import many
from corten.cli.app import app
from corten.engine import accelerator, as_engine, cluster, cluster_blocks
from corten.engine.cluster import Cluster, ClusterMaskPass, ClusterResidualPass, connect
from corten.engine.cluster_blocks import parts_of
from corten.engine.passes import MaskPass
from corten.engine.residuals import ResidualPass
from corten.lowrank import TensorTrain
from corten.propensity.coupling import Product
from corten.propensity.ising import IsingPropensity
from corten.propensity.selection import held_out, swapped
from corten.simulate.fields import block_parameter
from fits import assert_same_fit

pytestmark = pytest.mark.usefixtures("read_here")
CLOSE = 1e-5


def local_cluster(workers, **more):
    return distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, dashboard_address=":0", **{"processes": False} | more
    )


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A busy machine may answer late; tests that expect no answer set a short time of their own."""
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 600.0)
    monkeypatch.setattr(cluster, "WORKER_SECONDS", 600.0)


@pytest.fixture(scope="module")
def client():
    with local_cluster(3) as made, distributed.Client(made) as found:
        yield found


def assert_same_pass(found, wanted):
    assert found[0] == pytest.approx(wanted[0], rel=1e-6)
    size = max(np.abs(part).max() for part in wanted[1])
    for have, want in zip(found[1], wanted[1]):
        assert have.shape == want.shape
        np.testing.assert_allclose(have, want, atol=CLOSE * size)


def drawn(shape=(21, 12, 10), seed=5):
    """A mask with structure, and the training part of it."""
    rng = np.random.default_rng(seed)
    parameter = block_parameter(shape, 2, seed=2)
    mask = rng.random(shape) < 1 / (1 + np.exp(-parameter))
    return mask, mask & (rng.random(shape) < 0.7)


@pytest.mark.parametrize(
    ("shape", "name", "neighborhood", "periodic", "q"),
    [
        ((11, 3, 5), "product", "adjacent", (), 0.7),
        ((11, 3, 5), "product", "adjacent", (0, 2), 0.7),
        ((9, 6), "sigmoid", "cube", (0,), 1.0),
        ((9, 4, 3), "polynomial", "cube", (0, 1), 0.7),
        ((15, 3, 4), "product", [(2, 0, 1), (-2, 0, -1), (0, 1, 0), (0, -1, 0)], (0,), 0.7),
        ((9, 2, 3, 2), "linear", "adjacent", (3,), 1.0),
        ((2, 3, 4), "product", "adjacent", (0,), 0.7),
        ((10, 3, 4), "zero", "adjacent", (), 0.7),
    ],
)
def test_passes_over_a_mask_agree_with_the_threads(client, shape, name, neighborhood, periodic, q):
    tt, spins, _, threads = build(shape, COUPLINGS[name], neighborhood=neighborhood, periodic=periodic, q=q)
    passes = as_engine(client).mask_pass(spins, threads.model, q)
    radius = int(np.abs(threads.model.offsets[:, 0]).max()) if name != "zero" else 0
    assert len(passes.parts) == max(1, min(3, shape[0] // (2 * radius + 1)))
    assert_same_pass(passes.loss_and_contractions(tt.frame()), threads.loss_and_contractions(tt.frame()))
    np.testing.assert_allclose(passes.log_odds(tt.cores), threads.log_odds(tt.cores), rtol=CLOSE, atol=1e-6)
    assert passes.effective_size(tt.cores) == pytest.approx(threads.effective_size(tt.cores), rel=CLOSE)
    assert passes.passes == 3


@pytest.mark.parametrize("periodic", [(), (0, 2)])
def test_expected_spins_are_those_of_the_threads(client, periodic):
    shape = (11, 3, 5)
    tt, spins, _, threads = build(shape, Product(0.2), periodic=periodic)
    base = TensorTrain.random(shape, 2, 9) * 0.5
    passes = as_engine(client).mask_pass(spins, threads.model, 0.7)
    mine, soft = passes.soft_spins(base.frame()), threads.soft_spins(base.frame())
    assert_same_pass(passes.loss_and_contractions(tt.frame(), mine), threads.loss_and_contractions(tt.frame(), soft))
    other = as_engine(client).mask_pass(swapped(spins), threads.model, 0.7)
    wanted = MaskPass(swapped(spins), threads.model, 0.7).loss_and_contractions(tt.frame(), soft)
    assert_same_pass(other.loss_and_contractions(tt.frame(), mine), wanted)


@pytest.mark.parametrize("observed", [0.7, 0.05])
def test_passes_over_data_agree_with_the_threads(client, observed):
    tt, _, _, _ = build((10, 5, 4), Product(0.2))
    rng = np.random.default_rng(0)
    values, mask = rng.normal(size=(10, 5, 4)).astype(np.float32), rng.random((10, 5, 4)) < observed
    here = ResidualPass(values, mask)
    for array, seen in ((values, mask), (da.from_array(values, chunks=4), da.from_array(mask, chunks=4))):
        there = as_engine(client).residual_pass(array, seen)
        assert_same_pass(there.loss_and_contractions(tt.frame()), here.loss_and_contractions(tt.frame()))
        assert_same_pass(there.contractions_of_data(tt.frame()), here.contractions_of_data(tt.frame()))


@pytest.mark.parametrize(
    ("planes", "shares", "radius", "periodic"),
    [(10, [1] * 3, 1, True), (7, [4, 1, 1, 9], 1, False), (5, [1] * 9, 2, True), (100, [1, 3], 2, False)],
)
def test_parts_own_every_plane_once_and_hold_its_neighbours(planes, shares, radius, periodic):
    parts = parts_of(planes, shares, radius=radius, halo=2 * radius, periodic=periodic)
    assert [plane for part in parts for plane in range(part.start, part.stop)] == list(range(planes))
    for part in parts:
        np.testing.assert_array_equal(part.held[part.own], np.arange(part.start, part.stop))
        np.testing.assert_array_equal(np.concatenate([np.arange(planes)[run] for run in part.runs]), part.held)
        if len(parts) > 1:
            assert part.stop - part.start > 2 * radius
            wanted = np.arange(part.start - 2 * radius, part.stop + 2 * radius)
            inside = wanted % planes if periodic else wanted[(wanted >= 0) & (wanted < planes)]
            np.testing.assert_array_equal(part.held, inside)
    if shares == [1, 3]:
        assert parts[0].stop == 25


def test_whole_fits_agree_with_the_threads(client):
    mask, kept = drawn()
    model = IsingPropensity(coupling=1 / 15, rank=2)
    one = model.fit(kept, 0.7)
    lazy = xr.DataArray(da.from_array(kept, chunks=(4, 5, 10)), dims=("x", "y", "t"))
    for given in (kept, lazy):
        assert_same_fit(one, model.fit(given, 0.7, engine=client), mask)
    loaded = model.fit(lazy, 0.7, engine=2)
    assert loaded.loss == one.loss


def test_a_search_over_ranks_holds_out_the_same_cells(client):
    _, kept = drawn((24, 20, 16))
    spins = np.where(kept, 1, -1).astype(np.int8)
    lazy = held_out(da.from_array(spins, chunks=(4, 5, 10)), 3)
    np.testing.assert_array_equal(lazy.compute(), held_out(spins, 3))
    np.testing.assert_array_equal(swapped(lazy).compute(), swapped(held_out(spins, 3)))
    model = IsingPropensity(coupling=1 / 15, max_rank=3)
    one, other = model.fit(kept, 0.7), model.fit(da.from_array(kept, chunks=7), 0.7, engine=client)
    scores = [[row["held-out"] for row in fit.choices[0].candidates] for fit in (one, other)]
    assert scores[1] == pytest.approx(scores[0], rel=1e-3)  # of held-out entries, which no descent makes small
    assert_same_fit(one, other, kept)


def test_a_domain_may_be_lazy_too(client):
    _, kept = drawn()
    domain = np.random.default_rng(1).random(kept.shape) < 0.8
    model = IsingPropensity(coupling=1 / 15, rank=2)
    one = model.fit(kept & domain, 0.7, domain=domain)
    other = model.fit(da.from_array(kept & domain), 0.7, domain=da.from_array(domain), engine=client)
    assert_same_fit(one, other, kept & domain)


def test_complete_gives_the_same_intervals(client, tmp_path):
    rng = np.random.default_rng(0)
    x = corten.simulate.tucker_signal((12, 11, 10), rank=1) + 0.1 * rng.normal(size=(12, 11, 10))
    x[rng.random(x.shape) < 0.3] = np.nan
    options = {
        "completion": corten.TuckerCompletion(rank=1), "calibration": "random",
        "propensity": IsingPropensity(coupling=1 / 15, rank=1),
    }  # fmt: skip
    one, other = (corten.complete(x, engine=engine, **options) for engine in ("auto", client))
    # Sums in another order stop the descents elsewhere, by far less than the noise; a cutoff may be the next score.
    assert np.abs(other.estimate - one.estimate).max() <= 0.02
    assert other.width_array[np.isnan(x)].mean() == pytest.approx(one.width_array[np.isnan(x)].mean(), rel=0.02)
    assert "3 workers" in other.source.settings()["engine"]
    other.source.save(tmp_path / "fit.corten")
    assert corten.load(tmp_path / "fit.corten").completer.engine == "auto"


def test_completions_that_stay_on_this_machine_say_so(client):
    x = np.add.outer(np.arange(8.0), np.arange(9.0))
    x[2:4, 3] = np.nan
    options = {"completion": "smooth", "propensity": "uniform", "calibration": "random"}
    there, here = (str(corten.complete(x, engine=engine, **options).source.choices) for engine in (client, "auto"))
    assert "this machine" in there
    assert "this machine" not in here


def test_blocks_are_let_go_with_their_pass(client):
    _, spins, _, threads = build((11, 3, 5), Product(0.2))
    passes = as_engine(client).mask_pass(spins, threads.model, 0.7)
    passes.effective_size([np.zeros((1, n, 1)) for n in spins.shape])
    assert any("MaskBlock" in key for keys in client.has_what().values() for key in map(str, keys))
    del passes
    deadline = time.monotonic() + 600
    while any("MaskBlock" in str(key) for keys in client.has_what().values() for key in keys):
        assert time.monotonic() < deadline, "workers still hold the blocks of a pass that is gone"
        distributed.wait(client.submit(int, pure=False))


@pytest.fixture(scope="module")
def processes():
    with local_cluster(2, processes=True) as made, distributed.Client(made, set_as_default=False) as found:
        yield found


@pytest.mark.slow  # kills a process; `test_blocks_of_a_worker_that_is_gone_are_made_again` does not
@pytest.mark.parametrize("lazy", [False, True])
def test_a_worker_lost_in_the_middle_of_a_fit_changes_nothing(processes, monkeypatch, lazy):
    processes.wait_for_workers(2, timeout=600)
    _, kept = drawn()
    model = IsingPropensity(coupling=1 / 15, rank=2)
    one = model.fit(kept, 0.7)
    killed = []
    ask = cluster_blocks.ClusterPass.ask

    def ask_and_kill(self, method, arguments):
        if method == "loss_and_contractions" and not killed and next(count) == 4:
            killed.append(self.owners[0])
            os.kill(processes.run(os.getpid)[self.owners[0]], signal.SIGKILL)
        return ask(self, method, arguments)

    count = iter(range(1000))
    monkeypatch.setattr(cluster_blocks.ClusterPass, "ask", ask_and_kill)
    other = model.fit(da.from_array(kept, chunks=(5, 12, 10)) if lazy else kept, 0.7, engine=processes)
    assert killed
    assert_same_fit(one, other, kept)


def test_blocks_of_a_worker_that_is_gone_are_made_again(client, monkeypatch):
    """What waits for a worker that will never come back is found out by looking."""
    tt, spins, _, threads = build((11, 3, 5), Product(0.2))
    passes = as_engine(client).mask_pass(spins, threads.model, 0.7)
    wanted = passes.loss_and_contractions(tt.frame())
    monkeypatch.setattr(cluster_blocks, "LOOK_SECONDS", 0.2)
    passes.owners[1] = "tcp://127.0.0.1:1"
    stuck = client.submit(int, workers=["tcp://127.0.0.1:1"], pure=False)
    passes.futures[1] = stuck
    assert_same_pass(passes.loss_and_contractions(tt.frame()), wanted)
    assert passes.owners[1] in client.nthreads()


def test_errors_say_what_to_do(client, monkeypatch):
    _, spins, _, threads = build((12, 3, 5), Product(0.2))
    engine = as_engine(client)
    assert isinstance(engine, Cluster)
    assert engine.label == "dask (3 workers, 3 threads)"
    with pytest.raises(TypeError, match="int8"):
        engine.mask_pass(spins.astype(int), threads.model, 0.7)
    with pytest.raises(ValueError, match="train_share"):
        engine.mask_pass(spins, threads.model, 1.5)
    engine.mask_pass(da.from_array(spins, chunks=(12, 1, 5)), threads.model, 0.7)
    with monkeypatch.context() as patch, pytest.warns(UserWarning, match="chunks of 12 planes"):
        patch.setattr(cluster_blocks, "MAX_UNWARNED_BYTES", 1)
        engine.mask_pass(da.from_array(spins, chunks=(12, 1, 5)), threads.model, 0.7)
    unknown = da.from_array(spins)[da.from_array(np.arange(12) > 3)]
    with pytest.raises(ValueError, match="compute_chunk_sizes"):
        engine.residual_pass(unknown, unknown)
    lazy = da.from_array(spins > 0)
    with pytest.raises(ValueError, match="tt-svd"):
        IsingPropensity(coupling=0.1, rank=2, start="tt-svd").fit(lazy, engine=client)
    with pytest.raises(TypeError, match="boolean"):
        IsingPropensity(coupling=0.1, rank=2).fit(lazy.astype(float), engine=client)
    with pytest.raises(ValueError, match="mask has 3"):
        IsingPropensity(coupling=0.1, rank=2).fit(da.full((6, 4, 4), 3, dtype=np.int8), engine=client)
    with pytest.raises(TypeError, match=r"distributed\.Client"):
        Cluster("tcp://127.0.0.1:8786")
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 0.5)
    with pytest.raises(ConnectionError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9"):
        connect("tcp://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ImportError, match=r"corten\[cluster\]"):
        as_engine("dask")


def test_a_cluster_without_workers_or_a_closed_client_is_refused(monkeypatch):
    monkeypatch.setattr(cluster, "WORKER_SECONDS", 0.2)
    with local_cluster(0) as made, distributed.Client(made, set_as_default=False) as found:
        engine = Cluster(found)
        with pytest.raises(ConnectionError, match="no worker"):
            engine.workers()
    with pytest.raises(ValueError, match="closed"):
        as_engine(found)


def test_a_scheduler_that_is_gone_is_named(client, monkeypatch):
    def gone(self):
        raise OSError("connection reset")

    monkeypatch.setattr(distributed.Client, "nthreads", gone)
    with pytest.raises(ConnectionError, match=r"scheduler at .* answers no more.*start it"):
        Cluster(client).workers()


def test_members_without_corten_or_with_another_are_refused(client, monkeypatch):
    Cluster(client, inside=1).check()

    def says(version, problem=None):
        def other(inside):
            if inside == 2:  # on workers
                if problem:
                    raise problem
                return version
            return "0.1"

        return other

    for answer, error, message in (
        (says("0.0"), ImportError, r"the worker .* has corten 0\.0, this machine 0\.1"),
        (says("", ModuleNotFoundError("No module named 'corten'")), ImportError, r"the worker .* has no corten: pip"),
        (says("", OSError("no GPU")), ValueError, r"the worker .* cannot take part: no GPU"),
    ):
        monkeypatch.setattr(cluster, "offer", answer)
        with pytest.raises(error, match=message):
            Cluster(client, inside=2).check()
    monkeypatch.setattr(cluster, "offer", says("0.1"))

    def refuse(self, *_):
        raise ModuleNotFoundError("No module named 'corten'")

    monkeypatch.setattr(distributed.Client, "run_on_scheduler", refuse)
    with pytest.raises(ImportError, match=r"the scheduler .* has no corten"):
        Cluster(client, inside=2).check()
    for bad in ("dask", "banana", 0, True):
        with pytest.raises(ValueError, match="workers can use"):
            Cluster(client, inside=bad)


def test_dask_is_the_client_there_is(client):
    assert as_engine("dask").client is client


def test_mask_pass_has_the_whole_interface():
    own = {name for name in vars(MaskPass) if not name.startswith("_") and callable(getattr(MaskPass, name))}
    assert own - {"log_odds_between", "loss_and_scalars"} <= set(vars(ClusterMaskPass))
    assert "run" in vars(ClusterResidualPass)
    assert {"loss_and_contractions", "contractions_of_data"} <= set(dir(ClusterResidualPass))


def test_importing_corten_loads_no_dask():
    code = "import sys, corten, corten.engine.cluster; assert 'dask' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


OPTIONS = ["--completion", "smooth", "--propensity", "uniform", "--calibration", "random"]  # few passes


@pytest.fixture
def days(tmp_path, monkeypatch):
    """Three files of one small tensor each, the last without anything observed."""
    rng = np.random.default_rng(0)
    paths = []
    for day in range(3):
        x = np.add.outer(np.arange(8.0), np.sin(np.arange(9.0))) + 0.1 * rng.normal(size=(8, 9))
        x[rng.random(x.shape) < 0.3] = np.nan
        if day == 2:
            x[:] = np.nan
        xr.Dataset({"tec": (("lat", "lon"), x)}).to_netcdf(tmp_path / f"day{day}.nc")
        paths.append(str(tmp_path / f"day{day}.nc"))
    return paths


def test_the_command_line_uses_a_cluster(client, days, tmp_path):
    alone = [*OPTIONS, "--output"]
    address = client.scheduler.address
    runner = CliRunner()
    for more, name in (([], "here.nc"), (["--cluster", address], "there.nc")):
        done = runner.invoke(app, ["complete", days[0], "--json", *more, *alone, str(tmp_path / name)])
        assert done.exit_code == 0, done.output
        assert ("3 workers" in json.loads(done.stdout)["settings"]["engine"]) == bool(more)
    here, there = (xr.load_dataset(tmp_path / name) for name in ("here.nc", "there.nc"))
    xr.testing.assert_allclose(here, there, atol=1e-3)


@pytest.mark.parametrize("where", ["here", "there"])
def test_several_files_are_completed_each_by_itself(client, days, tmp_path, where):
    runner = CliRunner()
    more = ["--cluster", client.scheduler.address] if where == "there" else []
    folder = tmp_path / where
    done = runner.invoke(app, ["complete", *days, *more, *OPTIONS, "--output", str(folder)])
    assert done.exit_code == 2
    assert "1 of 3 files could not be completed" in done.output
    assert "no observed value" in done.output
    assert sorted(path.name for path in folder.iterdir()) == ["day0.nc", "day1.nc"]
    single = runner.invoke(app, ["complete", days[1], *OPTIONS, "--output", str(tmp_path / "one.nc")])
    assert single.exit_code == 0, single.output
    one, many = xr.load_dataset(tmp_path / "one.nc"), xr.load_dataset(folder / "day1.nc")
    for name in ("tec", "tec_lower", "tec_upper"):
        np.testing.assert_array_equal(one[name], many[name])


def test_gpus_are_looked_for_on_the_workers(client, days, tmp_path, monkeypatch):
    """This machine (the main thread) has no GPU; the workers (other threads) have what passes for one."""
    pytest.importorskip("jax", reason="needs JAX: pip install 'corten[gpu]'")

    def made(device="any", found=accelerator.Accelerator):
        if device == "gpu" and threading.current_thread() is threading.main_thread():
            raise OSError("no GPU here")
        return found("any")

    monkeypatch.setattr(accelerator, "Accelerator", made)
    options = [*OPTIONS, "--engine", "gpu"]
    there = ["--cluster", client.scheduler.address]
    alone = CliRunner().invoke(app, ["complete", days[0], *options, "--output", str(tmp_path / "alone.nc")])
    assert alone.exit_code == 2 and "no GPU here" in alone.output
    one = ["complete", days[0], *options, *there, "--json", "--output", str(tmp_path / "one.nc")]
    done = CliRunner().invoke(app, one)
    assert done.exit_code == 0, done.output
    assert "gpu inside" in json.loads(done.stdout)["settings"]["engine"]
    many = ["complete", *days[:2], *options, *there, "--output", str(tmp_path / "many")]
    done = CliRunner().invoke(app, many)
    assert done.exit_code == 0, done.output
    assert "jax" in xr.load_dataset(tmp_path / "many" / "day1.nc").attrs["corten_settings"]


def test_workers_without_a_gpu_are_named_before_the_file_is_read(client, days, tmp_path):
    jax = pytest.importorskip("jax", reason="needs JAX: pip install 'corten[gpu]'")
    if any(device.platform == "gpu" for device in jax.devices()):
        pytest.skip("workers of this machine have a GPU")
    for files, output in ((["missing.nc"], "a.nc"), (days[:2], "all")):
        arguments = ["complete", *files, "--cluster", client.scheduler.address, "--engine", "gpu"]
        done = CliRunner().invoke(app, [*arguments, "--output", str(tmp_path / output)])
        assert done.exit_code == 2
        assert "the worker" in done.output and "found no GPU" in done.output
    assert not list(tmp_path.glob("a*"))


def test_what_the_workers_leave_undone_is_named(client, days, tmp_path, monkeypatch):
    """Workers that vanish for good while files wait: those done are written, the others have one reason."""
    asked = iter(range(100))
    workers = Cluster.workers

    def vanish(self):
        if next(asked) > 1:
            raise ConnectionError("no worker is left")
        return workers(self)

    monkeypatch.setattr(many, "TENSORS_PER_THREAD", 0.3)  # one file at a time
    monkeypatch.setattr(Cluster, "workers", vanish)
    done = CliRunner().invoke(
        app, ["complete", *days, *OPTIONS, "--cluster", client.scheduler.address, "--output", str(tmp_path / "all")]
    )
    assert done.exit_code == 2
    left = f"{days[1]}, {days[2]}: no worker is left"
    assert "2 of 3 files" in done.output and left in " ".join(done.output.split())
    assert [path.name for path in (tmp_path / "all").iterdir()] == ["day0.nc"]


def test_the_command_line_refuses_what_cannot_be(days, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 0.5)
    runner = CliRunner()
    for arguments, why in (
        ([*days, "--output", str(tmp_path / "all.nc")], "give a folder"),
        ([*days, "--output", str(tmp_path / "all"), "--report", "page.html"], "one file"),
        ([days[0], days[0], "--output", str(tmp_path / "all")], "several inputs would be written"),
        ([days[0], "--cluster", "tcp://127.0.0.1:9", "--output", str(tmp_path / "a.nc")], "no Dask scheduler answers"),
        (
            [days[0], "--cluster", "tcp://127.0.0.1:9", "--memory", "2GB", "--output", str(tmp_path / "a.nc")],
            "--memory",
        ),
    ):
        done = runner.invoke(app, ["complete", *arguments])
        assert done.exit_code == 2
        assert why in done.output
    assert not list(tmp_path.glob("a*"))


def test_workers_may_use_an_accelerator_for_their_block(client):
    pytest.importorskip("jax", reason="needs JAX: pip install 'corten[gpu]'")
    tt, spins, _, threads = build((11, 3, 5), Product(0.2), periodic=(0,))
    engine = Cluster(client, inside="jax")
    assert engine.label == "dask (3 workers, 3 threads, jax inside)"
    passes = engine.mask_pass(spins, threads.model, 0.7)
    assert_same_pass(passes.loss_and_contractions(tt.frame()), threads.loss_and_contractions(tt.frame()))
    data = engine.residual_pass(spins, spins).loss_and_contractions(tt.frame())
    assert_same_pass(data, ResidualPass(spins, spins).loss_and_contractions(tt.frame()))


def test_a_file_that_does_not_fit_is_filled_from_disk_on_the_cluster(client, days, tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr("corten.cli.complete.complete_from_disk", lambda *_, completer, **__: given.append(completer))
    monkeypatch.setenv("CORTEN_MEMORY", "1000")
    words = ["complete", days[0], "--cluster", client.scheduler.address, "--output", str(tmp_path / "filled.zarr")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    (one,) = given
    assert isinstance(one.engine, Cluster)
