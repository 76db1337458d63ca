"""The solver of conditional means against slow obvious versions: joined axes, the number of modes, when it stops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from corten.completion import spectral_solver
from corten.completion.axes_kinds import Basis, basis_of
from corten.completion.covariance import Component, Covariance
from corten.completion.gaussian_process import SpectralPrior
from corten.engine.arrays import HostArrays
from priors import conditional_mean, to_field

NAN = float("nan")


def prior_of(shape: tuple[int, ...], noise: float, *lengths: float) -> SpectralPrior:
    """A smooth field whose axes are ordered."""
    lengths = lengths or (3.0,) * len(shape)
    component = Component(1.0, (tuple(range(len(shape))),), (1.5,), lengths, (NAN,) * len(shape))
    return SpectralPrior.of(Covariance((component,), noise), ("ordered",) * len(shape), shape=shape, correlations={})


def bases_of(lengths: Sequence[int], kinds: str) -> list[Basis]:
    """A basis for each axis that is longer than one; kinds: o(rdered), p(eriodic), u(nordered), f(iner grid)."""
    bases = []
    for axis, (length, kind) in enumerate(zip(lengths, kinds)):
        rotation = np.linalg.qr(np.random.default_rng(axis).standard_normal((length, length)))[0]
        if length == 1:
            continue
        if kind == "u":
            bases.append(basis_of("unordered", axis=axis, length=length, eigenvectors=rotation))
        elif kind == "f":
            bases.append(basis_of("ordered", axis=axis, length=length + 2, positions=np.arange(length) * 1.1))
        else:
            bases.append(basis_of({"o": "ordered", "p": "periodic"}[kind], axis=axis, length=length))
    return bases


@pytest.mark.parametrize(
    "lengths, kinds, joined",
    [
        ((50, 4, 5), "opu", 2),
        ((50, 8, 8), "oou", 2),  # 64 positions together, the most
        ((50, 8, 9), "oou", 0),
        ((3, 4, 5), "upo", 3),
        ((2, 6, 6), "ouo", 2),
        ((7, 6), "po", 2),
        ((5, 6, 1), "oou", 0),  # the last axis has no basis, and products are along the last axes only
        ((5, 1, 6), "oou", 0),
        ((7, 4, 5), "ofu", 0),  # a finer grid has more coefficients than entries
        ((7, 4, 50), "ouo", 0),  # the last axis is long and has a product with half its rows
    ],
)
def test_joined_axes_have_the_coefficients_of_one_axis_after_the_other(
    lengths: tuple[int, ...], kinds: str, joined: int
) -> None:
    bases = bases_of(lengths, kinds)
    found = spectral_solver._joined(bases, len(lengths))
    assert len(bases) - len(found) == max(joined - 1, 0)
    assert isinstance(found[-1], spectral_solver.Joined) == (joined > 0)
    fields = np.random.default_rng(0).standard_normal((2, *lengths))
    expected = []
    for one in fields:  # a round, one axis after the other
        for basis in bases:
            one = np.moveaxis(np.tensordot(spectral_solver.rows_of(basis, float), one, (1, basis.axis)), 0, basis.axis)
        expected.append(one)
    coefficients = fields
    for transform in found:
        coefficients = transform.forward(coefficients)
    np.testing.assert_allclose(coefficients, expected, atol=1e-12)
    if "f" not in kinds:
        for transform in reversed(found):
            coefficients = transform.inverse(coefficients)
        np.testing.assert_allclose(coefficients, fields, atol=1e-12)


def test_a_mean_does_not_depend_on_whether_short_axes_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    shape = (9, 5, 4)
    prior = prior_of(shape, 0.05)
    kept = (rng.random(shape) < 0.6).astype(np.float32)
    values = kept * rng.standard_normal(shape).astype(np.float32)
    means = []
    for most in (64, 1):
        monkeypatch.setattr(spectral_solver, "MAX_JOINED_LENGTH", most)
        made = spectral_solver.system_of(HostArrays(), [prior], kept[None])
        assert any(isinstance(one, spectral_solver.Joined) for one in made.transforms) == (most == 64)
        means.append(conditional_mean(prior, values, kept, np.zeros_like(values), 300))
    np.testing.assert_allclose(*means, atol=1e-4)


def number_of_modes(spectra: Sequence[np.ndarray], noise: float, entries: int, fewest: int) -> int:
    """As many as have a variance above 1,000 noises in a round, at most a 20th of the entries, at least `fewest`."""
    large = 0
    for place in np.ndindex(spectra[0].shape):
        if any(spectrum[place] > 1000 * noise for spectrum in spectra):
            large += 1
    return max(min(fewest, entries), min(large, 1500, entries // 20))


def modes_by_hand(spectrum: np.ndarray, most: int) -> set[tuple[int, ...]]:
    """A box that grows by the mode with the largest variance, as long as it has at most `most` modes."""
    top = np.unravel_index(np.argmax(spectrum), spectrum.shape)
    box = [{int(mode)} for mode in top]
    while True:
        best: tuple[float, int, int] | None = None
        for k, own in enumerate(box):
            size = (len(own) + 1) * int(np.prod([len(one) for j, one in enumerate(box) if j != k]))
            for mode in range(spectrum.shape[k]):
                variance = float(np.take(spectrum, mode, k).max())
                if mode not in own and size <= most and (best is None or variance > best[0]):
                    best = variance, k, mode
        if best is None:
            return {place for place in np.ndindex(spectrum.shape) if all(p in own for p, own in zip(place, box))}
        box[best[1]].add(best[2])


@pytest.mark.parametrize("noise", [1e-6, 3e-3, 1e-2, 3e-2, 1.0])
def test_modes_are_those_with_a_variance_far_above_the_noise(noise: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectral_solver, "FEWEST_MODES", 6)
    asked = []

    def noted(bases: Sequence[Basis], spectrum: np.ndarray, most: int) -> list[np.ndarray]:
        asked.append(most)
        return box_of_modes(bases, spectrum, most)

    box_of_modes = spectral_solver.box_of_modes
    monkeypatch.setattr(spectral_solver, "box_of_modes", noted)
    shape = (30, 38)
    priors = [prior_of(shape, noise, *lengths) for lengths in ((2.0, 6.0), (5.0, 4.0))]
    kept = np.ones((2, *shape), np.float32)
    kept[:, 5:20, 5:30] = 0
    made = spectral_solver.system_of(HostArrays(), priors, kept)
    spectra = [prior.spectrum for prior in priors]
    most = number_of_modes(spectra, noise, kept[0].size, 6)
    assert asked == [most]
    assert (noise < 1e-5) == (most == 57) and (noise > 0.5) == (most == 6)  # both ends, and between them
    expected = modes_by_hand(np.maximum(*spectra), most)
    assert {tuple(map(int, np.unravel_index(at, shape))) for at in made.modes} == expected
    assert most / 2 < len(expected) <= most


def test_a_small_field_has_as_many_modes_as_entries_and_a_larger_one_200() -> None:
    for shape, noise, count in (((6, 7), 1.0, 42), ((20, 21), 1.0, 200), ((20, 21), 1e-9, 200)):
        prior = prior_of(shape, noise)
        made = spectral_solver.system_of(HostArrays(), [prior], np.ones((1, *shape), np.float32))
        assert number_of_modes([prior.spectrum], noise, prior.spectrum.size, 200) == count
        assert 0.9 * count <= len(made.modes) <= count


def stopped_by_hand(fields: Sequence[np.ndarray], kept: np.ndarray, noises: Sequence[float]) -> int:
    """The first of the fields after 1, 2, ... iterations that differs little from the one before it."""
    for number in range(1, len(fields)):
        settled = []
        for b, noise in enumerate(noises):
            limit = min(max(0.03 * noise**0.5, 0.002), 0.008)
            change = (fields[number][b] - fields[number - 1][b])[kept[b] == 0].astype(float)
            settled.append(float(np.sqrt(np.mean(change**2))) <= limit)
        if all(settled):
            return number
    return len(fields) - 1


@pytest.mark.parametrize("noises", [(1e-3,), (0.02,), (0.3,), (1e-3, 0.3), (0.3, 0.02)])
def test_iterations_stop_when_they_change_missing_entries_less_than_the_noise(
    noises: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spectral_solver, "FEWEST_MODES", 1)  # so that more than a few iterations are needed
    monkeypatch.setattr(spectral_solver, "COARSE_MODES", 1)
    monkeypatch.setattr(spectral_solver, "BETWEEN_CHECKS", 1)
    rng = np.random.default_rng(2)
    shape = (len(noises), 24, 26)
    priors = [prior_of(shape[1:], noise, 8.0, 8.0) for noise in noises]
    kept = np.ones(shape, np.float32)
    kept[:, 6:18, 5:20] = 0
    fields = [to_field(p, np.sqrt(p.spectrum) * rng.standard_normal(shape[1:]).astype(np.float32)) for p in priors]
    values = kept * np.stack(fields)

    def mean(iterations: int) -> Any:
        start = np.zeros(shape, np.float32)
        return spectral_solver.condition(
            HostArrays(), priors, values=values, kept=kept, start=start, iterations=iterations
        )

    found = mean(200)
    with monkeypatch.context() as patched:
        patched.setattr(spectral_solver, "SETTLED", (0.0, 0.0))
        after = [mean(number + 1) for number in range(120)]
    expected = stopped_by_hand(after, kept, noises)
    assert 2 <= expected < 119
    assert np.array_equal(found, after[expected])
    assert not np.array_equal(after[expected], after[expected - 1])
