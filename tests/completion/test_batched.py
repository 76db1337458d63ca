"""The stack in batches of rounds, with NumPy and with JAX, against the members that fill one round on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from corten.completion import stack as stack_module
from corten.completion.axes_kinds import axis_kinds
from corten.completion.covariance import Component, Covariance
from corten.completion.gaussian_process import PreparedProcess, _fills_on
from corten.completion.held_out import HeldOut, Part
from corten.completion.positions import grids_of
from corten.completion.smooth import SmoothCompletion
from corten.completion.stack import PreparedStack, fill_on, fill_rounds, why_not
from corten.completion.unfoldings import PreparedUnfoldings, held_out_errors
from corten.data.axes import Axis
from corten.engine.accelerator import Accelerator
from corten.engine.arrays import Arrays, HostArrays, device_arrays

NAN = float("nan")


def on_jax() -> Arrays:
    """Arrays of JAX on whatever it has."""
    pytest.importorskip("jax")
    found = device_arrays(Accelerator("any"))
    assert found is not None
    return found


@cache
def case(unordered: bool, origin: str) -> tuple[PreparedStack, list[np.ndarray], list[np.ndarray]]:
    """A stack with settings that are given, a field far from zero, and the masks of three rounds."""
    rng = np.random.default_rng(5)
    shape = (12, 9, 10)
    axes = tuple(
        Axis(name, n, None, "unordered" if unordered and k == 2 else "ordered")
        for k, (name, n) in enumerate(zip("abc", shape))
    )
    kinds = axis_kinds(axes, shape)
    groups, length = (((0, 1), (2,)), 4.0) if not unordered else (((0, 1),), NAN)
    nu = (1.5, 0.8)[: len(groups)]
    one = Component(1.0, groups, nu, (3.0, 2.0, length), (NAN, NAN, 0.3 if unordered else NAN))
    x = np.sin(np.arange(12) / 3)[:, None, None] + np.cos(np.arange(9) / 2)[:, None] * np.arange(10) / 5
    x = 280 + 5 * (x + 0.1 * rng.standard_normal(shape))
    masks = [rng.random(shape) < share for share in (0.8, 0.6, 0.7)]
    for mask in masks:
        mask[2:6, 1:5, 3:8] = False
    smooth = SmoothCompletion().prepare(x, masks[0], axes, 0)
    process = PreparedProcess(kinds, Covariance((one,), 0.05), smooth, 60, (), grids_of(axes, shape))
    low_rank = PreparedUnfoldings(kinds, origin, 12, smooth)
    members: dict[str, Any] = {"pyramid": smooth, "process": process, "low rank": low_rank}
    return PreparedStack(members, {"pyramid": 0.2, "process": 0.5, "low rank": 0.3}), [x] * 3, masks


@pytest.mark.parametrize("make", [HostArrays, on_jax])
@pytest.mark.parametrize(("unordered", "origin"), [(False, "mean"), (False, "power"), (True, "lowest")])
def test_members_of_a_batch_agree_with_those_of_single_rounds(
    make: Any, unordered: bool, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Short axes and small tensors as if they were long: with a start on a coarse grid, and systems inverted on devices.
    monkeypatch.setattr("corten.completion.gaussian_process.MIN_HALVED_ENTRIES", 1)
    monkeypatch.setattr("corten.completion.gaussian_process.MIN_HALVED_LENGTH", 10)
    monkeypatch.setattr("corten.completion.spectral_solver.MAX_ENTRIES_ON_HOST", 0 if unordered else 10_000)
    stack, values, masks = case(unordered, origin)
    arrays = make()
    if unordered and isinstance(arrays, HostArrays):
        pytest.skip("bases that differ between rounds are for devices")
    assert why_not(stack, masks[0].shape) is None
    batch = fill_rounds(arrays, stack, values, masks)
    for number, (own, mask) in enumerate(zip(values, masks)):
        wanted, found = stack.fill(own, mask), batch.fill(number)
        for name, member in wanted.members.items():
            # The spread of the field is about 6: roundings of single precision, and where iterations stop.
            np.testing.assert_allclose(found.members[name], member, atol=5e-3, err_msg=name)
        np.testing.assert_allclose(found.estimate, wanted.estimate, atol=5e-3)


def test_one_fill_runs_on_the_device_of_its_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax")
    stack, (x, *_), (mask, *_) = case(False, "mean")
    wanted, filled = fill_on("auto", stack, x, mask), []
    monkeypatch.setattr(stack_module, "fill_rounds", lambda *given: filled.append(1) or fill_rounds(*given))
    np.testing.assert_allclose(fill_on("jax", stack, x, mask).estimate, wanted.estimate, atol=5e-3)
    assert filled == [1]
    roots = replace(stack, roots=True)  # not on devices
    assert np.array_equal(fill_on("jax", roots, x, mask).estimate, roots.fill(x, mask).estimate)
    assert filled == [1]


@pytest.mark.parametrize("unordered", [False, True])
def test_held_out_errors_on_a_device_are_those_of_the_host(unordered: bool) -> None:
    """Several parts and covariances in one batch, filled up to its size."""
    stack, (x, *_), masks = case(unordered, "mean")
    process = stack.members["process"]
    assert isinstance(process, PreparedProcess)
    covariances = [process.covariance, replace(process.covariance, noise=3.0)]

    def on_host(todo: Sequence[tuple[Covariance, Part]]) -> list[np.ndarray]:
        return [one.fill_from(part.values, part.kept, part.start).estimate for one, part in with_covariances(todo)]

    def on_device(todo: Sequence[tuple[Covariance, Part]]) -> list[np.ndarray]:
        return _fills_on(on_jax(), with_covariances(todo))

    def with_covariances(todo: Sequence[tuple[Covariance, Part]]) -> list[tuple[PreparedProcess, Part]]:
        return [(replace(process, covariance=one, grids=part.grids), part) for one, part in todo]

    errors = []
    for fills in (on_host, on_device):
        held_out = HeldOut.of(
            x, masks[0], kinds=process.kinds, grids=process.grids, pyramid=process.pyramid, seed=0, fills=fills
        )
        assert held_out is not None and len(held_out.parts) > 1
        errors.append(held_out.errors(covariances))
    assert errors[0][1] > 1.02 * errors[0][0]
    np.testing.assert_allclose(errors[1], errors[0], rtol=1e-3)


def test_errors_by_origin_and_iterations_are_those_of_single_runs() -> None:
    """All origins in one batch, with their start from the pyramid of the batch."""
    stack, (x, *_), masks = case(False, "mean")
    hidden = np.zeros(x.shape, bool)
    hidden[7:10, 2:6, 1:5] = masks[0][7:10, 2:6, 1:5]
    given = x, masks[0] & ~hidden, hidden, stack.members["pyramid"]
    settings: Any = {"kinds": ("ordered",) * 3, "origins": ("mean", "lowest", "power"), "numbers": (8, 15)}
    found, wanted = (held_out_errors(arrays, *given, **settings) for arrays in (on_jax(), HostArrays()))
    assert list(found) == [(origin, number) for number in (8, 15) for origin in settings["origins"]]
    assert {one: pytest.approx(error, rel=1e-3) for one, error in wanted.items()} == found
