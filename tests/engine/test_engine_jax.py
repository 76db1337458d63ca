"""The accelerator against the compiled kernels of this machine, which `test_engine` holds against a dense oracle.

Runs on JAX's CPU backend; what is tested here is the arithmetic and the cutting, not the speed.
"""

import os
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

pytest.importorskip("jax", reason="needs JAX: pip install 'corten[gpu]'")

from test_engine import COUPLINGS, build

from corten.engine import as_engine, gibbs, jax_passes, jax_slab
from corten.engine.accelerator import Accelerator
from corten.engine.passes import MaskPass
from corten.engine.residuals import ResidualPass
from corten.lowrank import TensorTrain
from corten.propensity.coupling import Product, Zero, as_coupling
from corten.propensity.estimation import effective_training_size
from corten.propensity.ising import IsingPropensity
from corten.propensity.neighborhood import resolve
from corten.simulate.fields import block_parameter
from fits import assert_same_fit

CLOSE = 1e-4


def assert_same_pass(found, wanted, tolerance=CLOSE):
    assert found[0] == pytest.approx(wanted[0], rel=1e-6)
    size = max(np.abs(part).max() for part in wanted[1])
    for have, want in zip(found[1], wanted[1]):
        assert have.shape == want.shape
        np.testing.assert_allclose(have, want, atol=tolerance * size)


@pytest.mark.parametrize(
    ("name", "link", "q"),
    [
        ("product", "logit", 0.7),
        ("product", "probit", 1.0),
        ("product", "zero", 0.7),
        ("linear", "logit", 1.0),
        ("polynomial", "logit", 0.7),
        ("sigmoid", "probit", 0.7),
        ("zero", "logit", 0.7),
    ],
)
def test_couplings_and_links_agree_with_the_kernels(name, link, q):
    tt, spins, _, threads = build((4, 3, 5), COUPLINGS[name], link, q=q)
    device = Accelerator().mask_pass(spins, threads.model, q)
    assert_same_pass(device.loss_and_contractions(tt.frame()), threads.loss_and_contractions(tt.frame()))
    assert device.passes == 1


@pytest.mark.parametrize(
    ("shape", "neighborhood", "periodic", "name"),
    [
        ((5, 6), "cube", (1,), "product"),
        ((4, 1, 3), "adjacent", (0, 1), "sigmoid"),
        ((3, 4, 4), "cube", (0, 2), "product"),
        ((6, 3, 4), [(2, 0, 1), (-2, 0, -1), (0, 1, 0), (0, -1, 0)], (0,), "product"),
        ((3, 2, 3, 2), "adjacent", (3,), "polynomial"),
    ],
)
def test_any_order_neighbourhood_and_periodic_axes(shape, neighborhood, periodic, name):
    tt, spins, _, threads = build(shape, COUPLINGS[name], neighborhood=neighborhood, periodic=periodic)
    device = Accelerator().mask_pass(spins, threads.model, 0.7)
    assert_same_pass(device.loss_and_contractions(tt.frame()), threads.loss_and_contractions(tt.frame()))
    np.testing.assert_allclose(device.log_odds(tt.cores), threads.log_odds(tt.cores), rtol=CLOSE, atol=1e-5)


@pytest.mark.parametrize("q", [0.9999, 1.0])
def test_no_overflow_at_huge_log_odds(q):
    for scale in (1e2, 1e4):
        tt, spins, _, threads = build((4, 3, 5), Zero(), q=q, scale=scale)
        found = Accelerator().mask_pass(spins, threads.model, q).loss_and_contractions(tt.frame())
        assert_same_pass(found, threads.loss_and_contractions(tt.frame()))


def test_slabs_that_do_not_divide_the_planes_change_nothing(monkeypatch):
    monkeypatch.setattr(jax_passes, "SLAB_ENTRIES", dict.fromkeys(("cpu", "gpu"), 3 * 5 * 4))
    tt, spins, _, threads = build((10, 5, 4), Product(0.2), periodic=(0,))
    device = Accelerator().mask_pass(spins, threads.model, 0.7)
    assert (device.cut.slabs, device.cut.height) == (4, 3)
    assert_same_pass(device.loss_and_contractions(tt.frame()), threads.loss_and_contractions(tt.frame()))
    np.testing.assert_allclose(device.log_odds(tt.cores), threads.log_odds(tt.cores), rtol=CLOSE, atol=1e-5)
    assert device.effective_size(tt.cores) == pytest.approx(effective_training_size(threads, tt), rel=1e-4)
    values = np.random.default_rng(0).normal(size=(10, 5, 4))
    mask = values > -0.3
    values[~mask] = np.nan
    one, other = Accelerator().residual_pass(values, mask), ResidualPass(values, mask)
    assert_same_pass(one.loss_and_contractions(tt.frame()), other.loss_and_contractions(tt.frame()))
    assert_same_pass(one.contractions_of_data(tt.frame()), other.contractions_of_data(tt.frame()))


@pytest.mark.parametrize("periodic", [(), (0, 2)])
def test_thinning_agrees_with_the_threads(periodic):
    shape = (4, 3, 5)
    tt, spins, _, threads = build(shape, Product(0.2), periodic=periodic)
    base = TensorTrain.random(shape, 2, 9) * 0.5
    soft = threads.soft_spins(base.frame())
    device = Accelerator().mask_pass(spins, threads.model, 0.7)
    mine = device.soft_spins(base.frame())
    assert np.abs(mine.values.astype(int) - soft.values).max() <= 1  # rounding to 1/127 may fall either way
    wanted = threads.loss_and_contractions(tt.frame(), soft)
    assert_same_pass(device.loss_and_contractions(tt.frame(), mine), wanted, 1e-2)


def test_ranks_share_programs():
    from corten.engine.jax_slab import bucket

    assert {bucket(rank, 100, 100) for rank in range(2, 16)} == {16}
    assert {bucket(rank, 1000, 1000) for rank in range(2, 16)} == {8, 16}
    assert bucket(17, 100, 100) == 32


def test_a_whole_fit_agrees_with_the_threads():
    rng = np.random.default_rng(5)
    parameter = block_parameter((30, 28, 26), 2, seed=2)
    mask = rng.random(parameter.shape) < 1 / (1 + np.exp(-parameter))
    kept = mask & (rng.random(mask.shape) < 0.7)
    model = IsingPropensity(coupling=1 / 15, rank=2)
    one, other = (model.fit(kept, 0.7, engine=engine) for engine in ("threads", "jax"))
    assert_same_fit(one, other, mask)


@pytest.mark.parametrize(("name", "shape"), [("product", (5, 6, 7)), ("sigmoid", (4, 6))])
def test_gibbs_sweeps_draw_the_same_numbers(name, shape):
    rng = np.random.default_rng(1)
    parameter = rng.normal(size=shape)
    hood = resolve("adjacent", shape, periodic=[k == 1 for k in range(len(shape))])
    colours = hood.colours(shape)
    coupling = COUPLINGS[name] if name == "product" else as_coupling(name)
    plan = gibbs.prepare(
        parameter,
        parameter,
        coupling=coupling,
        offsets=hood.offsets,
        periodic=hood.periodic,
        colours=colours.number,
        phases=colours.phases,
    )
    spins = np.where(rng.random(shape) < 0.5, 1, -1).astype(np.int8)
    spins[0, 0] = 0
    wanted = gibbs.sweep(plan, spins, 5, seed=2**63 + 11, first=3)
    np.testing.assert_array_equal(Accelerator().sweep(plan, spins, 5, 2**63 + 11, 3), wanted)


def kernel_in_arrays(spins, tiles, right, first, numbers, count, whole, tiling, rank):
    """What the fused kernel computes, written as array operations on the same tiles."""
    import jax.numpy as jnp
    from jax.lax import Precision

    from corten.engine.jax_fused import _clipped, _likelihood

    einsum = partial(jnp.einsum, precision=Precision.HIGHEST)  # a GPU multiplies with ten bits otherwise

    def shifted(block):
        rows, columns = jnp.pad(block, ((0, 0),) * 2 + ((1, 1), (0, 0))), jnp.pad(block, ((0, 0),) * 3 + ((1, 1),))
        planes = jnp.pad(block, ((0, 0), (1, 1), (0, 0), (0, 0)))
        return sum(
            x
            for x in (
                rows[:, :, 2:],
                rows[:, :, :-2],
                columns[..., 2:],
                columns[..., :-2],
                planes[:, 2:],
                planes[:, :-2],
            )
        )

    code = spins[:, : tiling.steps].astype(jnp.float32)
    b = einsum("xa,tain->txin", first, tiles)
    w = numbers[0] * _clipped(code)
    slope = shifted(b * w) + 1.0
    v, up, rest = _likelihood(code, b * slope, numbers[1], whole)
    x = jnp.arange(tiling.steps)[None, :, None, None]
    own = (x >= 2) & (x < 2 + count[0])
    v = jnp.where((x >= 1) & (x < 3 + count[0]), v, 0.0)
    g = jnp.where(own, v * slope + w * shifted(v * b), 0.0)
    ends = jnp.pad(einsum("txin,tain->txan", g, right)[:, 2:], ((0, 0), (0, 2), (0, 0), (0, 0)))
    losses = jnp.where(own, 2 * jnp.log(up) + rest, 0.0).sum((1, 2))
    return einsum("xa,txin->tain", first, g), ends, losses[:, None]


@pytest.mark.parametrize(("shape", "periodic", "q"), [((5, 31, 7), (), 0.7), ((4, 14, 130), (0, 1, 2), 1.0)])
def test_the_fused_kernel_s_tiles_and_shares_add_up(monkeypatch, shape, periodic, q):
    """The layout, the overlap and the row arithmetic; the kernel itself runs in the test below, on a GPU."""
    fused = pytest.importorskip("corten.engine.jax_fused", exc_type=ImportError)
    monkeypatch.setattr(fused, "_launch", kernel_in_arrays)
    monkeypatch.setattr(fused, "fused_pass", fused.fused_pass.__wrapped__)
    monkeypatch.setattr(jax_passes, "has_fused_kernel", lambda device: True)
    tt, spins, _, threads = build(shape, Product(0.2), periodic=periodic, q=q, rank=3)
    device = Accelerator(fused=True).mask_pass(spins, threads.model, q)
    assert_same_pass(device.loss_and_contractions(tt.frame()), threads.loss_and_contractions(tt.frame()))
    assert device._tiles is not None


def test_the_fused_kernel_is_compiled_only_where_it_pays_and_fits(monkeypatch):
    monkeypatch.setattr(jax_passes, "has_fused_kernel", lambda device: True)
    tt, spins, _, threads = build((4, 3, 5), Product(0.2))
    assert tt.shape == (4, 3, 5)
    assert Accelerator(fused=True).mask_pass(spins, threads.model, 0.7)._can_fuse
    assert not Accelerator(fused=False).mask_pass(spins, threads.model, 0.7)._can_fuse
    assert Accelerator().mask_pass(spins, threads.model, 0.7)._fuse_after > 1_000_000
    _, spins, _, probit = build((4, 3, 5), Product(0.2), "probit")
    assert not Accelerator(fused=True).mask_pass(spins, probit.model, 0.7)._can_fuse


def test_the_fused_kernel_on_a_gpu():
    try:
        engine = Accelerator("gpu", fused=True)
    except OSError:
        pytest.skip("no GPU here")
    for shape, periodic, q in (((9, 31, 130), (), 0.7), ((8, 14, 128), (0, 1, 2), 1.0)):
        tt, spins, _, threads = build(shape, Product(0.2), periodic=periodic, q=q, rank=3)
        device = engine.mask_pass(spins, threads.model, q)
        if not device._can_fuse:
            pytest.skip("this GPU is older than Hopper")
        assert_same_pass(device.loss_and_contractions(tt.frame()), threads.loss_and_contractions(tt.frame()))


TWO_DEVICES = """
import jax, numpy as np
from test_engine import Product, TensorTrain, build
from corten.engine.accelerator import Accelerator
from corten.engine.residuals import ResidualPass

assert len(jax.devices()) == 2
engine = Accelerator(devices=jax.devices())
assert "x 2" in engine.label
for periodic in ((0,),):
    tt, spins, _, threads = build((7, 5, 4), Product(0.2), periodic=periodic)
    passes = engine.mask_pass(spins, threads.model, 0.7)
    assert {d for a in passes._spins for d in a.devices()} == set(jax.devices())
    soft = passes.soft_spins(TensorTrain.random((7, 5, 4), 2, 9).frame())
    pairs = [
        (passes.loss_and_contractions(tt.frame()), threads.loss_and_contractions(tt.frame())),
        (passes.loss_and_contractions(tt.frame(), soft), threads.loss_and_contractions(tt.frame(), soft)),
        (engine.residual_pass(spins, spins).loss_and_contractions(tt.frame()),
         ResidualPass(spins, spins).loss_and_contractions(tt.frame())),
    ]
    for found, wanted in pairs:
        assert abs(found[0] - wanted[0]) < 1e-6 * abs(wanted[0])
        for have, want in zip(found[1], wanted[1]):
            np.testing.assert_allclose(have, want, atol=1e-4 * np.abs(want).max())
    np.testing.assert_allclose(passes.log_odds(tt.cores), threads.log_odds(tt.cores), rtol=1e-4, atol=1e-5)
    assert abs(passes.effective_size(tt.cores) / threads.effective_size(tt.cores) - 1) < 1e-4
"""


def test_two_devices_share_the_planes():
    here = os.path.dirname(__file__)
    tests = os.path.dirname(here)
    folders = [here, tests, os.path.dirname(tests)]  # this folder, that of what tests share, and that of benchmarks
    environment = os.environ | {
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run([sys.executable, "-c", TWO_DEVICES], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_errors_say_what_to_do(monkeypatch):
    import jax

    tt, spins, _, threads = build((4, 3, 5), Zero())
    assert tt.shape == spins.shape
    if all(device.platform == "cpu" for device in jax.devices()):
        with pytest.raises(OSError, match="no GPU"):
            as_engine("gpu")
        with pytest.raises(ValueError, match="give GPUs"):
            Accelerator("gpu", devices=jax.devices("cpu"))
    with pytest.raises(ValueError, match="device is 'tpu'"):
        Accelerator("tpu")
    with pytest.raises(ValueError, match="devices is empty"):
        Accelerator(devices=[])
    engine = as_engine("jax")
    assert engine.label.startswith("jax")
    with pytest.raises(TypeError, match="int8"):
        engine.mask_pass(spins.astype(int), threads.model, 0.7)
    with pytest.raises(ValueError, match="train_share"):
        engine.mask_pass(spins, threads.model, 1.5)
    monkeypatch.setattr(jax, "__version_info__", (0, 4, 30))
    with pytest.raises(ImportError, match="too old"):
        as_engine("jax")
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(ImportError, match=r"corten\[gpu\]"):
        as_engine("jax")


def test_importing_corten_loads_no_jax():
    code = "import sys, corten, corten.engine, corten.engine.accelerator; assert 'jax' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_mask_pass_has_the_whole_interface():
    asked = {name for name in dir(MaskPass) if not name.startswith("_")} & {
        "loss_and_contractions", "log_odds", "log_odds_slabs", "soft_spins",
    }  # fmt: skip
    assert asked <= set(dir(jax_passes.DeviceMaskPass))


def test_a_mask_pass_finds_its_programs_compiled_ahead(monkeypatch):
    tt, spins, _, threads = build((7, 6, 9), COUPLINGS["product"])
    device = Accelerator().mask_pass(spins, threads.model, 0.7)
    device._compile_ahead()  # what a GPU does while the mask is uploaded
    for program in (jax_slab.likelihood_pass, jax_slab.soft_values, jax_slab.weight_sums):
        monkeypatch.setattr(program, "_compiled", None)  # nothing may be compiled at the call
    assert_same_pass(device.loss_and_contractions(tt.frame()), threads.loss_and_contractions(tt.frame()))
    soft, wanted = device.soft_spins(tt.frame()), threads.soft_spins(tt.frame())
    assert np.abs(soft.values.astype(int) - wanted.values).max() <= 1
    assert device.effective_size(tt.cores) == pytest.approx(threads.effective_size(tt.cores), rel=1e-4)
    assert_same_pass(device.loss_and_contractions(tt.frame(), soft), threads.loss_and_contractions(tt.frame(), wanted))
