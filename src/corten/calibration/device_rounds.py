"""The rounds of pseudo-gaps on a device: several are filled at once, and reduced there to their scored entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod
from typing import NamedTuple

import numpy as np

from corten.calibration.round_entries import Hidden, Surroundings, reduced, scored
from corten.calibration.task import Round
from corten.completion.neighbours import NeighbourFeatures
from corten.completion.protocol import Fill, Prepared
from corten.completion.stack import BatchedFill, PreparedStack, fill_rounds, why_not
from corten.conformal.batched_features import features_of_rounds
from corten.conformal.local_scale import EntryFeatures
from corten.data.choices import Choice
from corten.data.observed import ObservedTensor
from corten.engine import as_engine
from corten.engine.arrays import DeviceArrays, device_arrays
from corten.engine.memory import USABLE_SHARE, available, in_words
from corten.engine.threads import in_order

BYTES_PER_ENTRY_AND_ROUND = 120  # of the device


class DeviceRounds(NamedTuple):
    """A prepared stack on a device, and how many rounds fit there at once."""

    stack: PreparedStack
    arrays: DeviceArrays
    at_once: int


class Final(NamedTuple):
    """The fill from all observed entries, and what computes the surroundings of the missing ones on the device."""

    fill: Fill
    around: Callable[[], Surroundings] | None


def found_on_device(
    device: DeviceRounds, rounds: Sequence[Round], *, values_of: Callable[[np.ndarray], np.ndarray],
    changed: ObservedTensor, describe: EntryFeatures, neighbours: NeighbourFeatures, limit: int, seed: int,
) -> Iterator[Hidden | Final]:  # fmt: skip
    """The rounds in their order, filled on a device, and at the end the fill from all observed entries.

    That is one more round of the last batch: no other program is compiled for it.
    """
    ordered = all(axis.kind != "unordered" for axis in describe.axes) and not neighbours.covariates
    for first in range(0, len(rounds) + 1, device.at_once):
        numbers = range(first, min(first + device.at_once, len(rounds) + 1))
        inside = [number for number in numbers if number < len(rounds)]
        trains = [rounds[number].train if number < len(rounds) else changed.mask for number in numbers]
        values = [values_of(train) for train in trains]
        batch = fill_rounds(device.arrays, device.stack, values, trains)
        entries = [scored(rounds[number], limit, [seed, number]) for number in inside]
        if not ordered:
            # Features of neighbours along unordered axes, and covariates, are gathered on the host.
            def reduce(b: int) -> Hidden:
                fill, own, train = batch.fill(b), values[b], trains[b]  # noqa: B023
                return reduced(fill, own, train=train, entries=entries[b], describe=describe, neighbours=neighbours)  # noqa: B023

            yield from in_order(reduce, range(len(inside)))
        elif inside:
            # All rounds of a batch take part, the fill from all entries too, with any entry: one program serves.
            spare = [entries[0]] * (len(numbers) - len(inside))
            yield from scored_on_device(batch, describe, [*entries, *spare], values)[: len(inside)]
        if len(inside) < len(numbers):
            alone = batch.only(len(inside))
            yield Final(alone.fill(0), partial(_around_missing, alone, describe, changed) if ordered else None)


def _around_missing(fill: BatchedFill, describe: EntryFeatures, changed: ObservedTensor) -> Surroundings:
    """The surroundings of the missing entries, from their fill on a device."""
    features, depths = described_on_device(fill, describe, np.flatnonzero(changed.missing)[None])
    return Surroundings(features[0], depths[0])


def scored_on_device(
    batch: BatchedFill, describe: EntryFeatures, entries: Sequence[np.ndarray], values: Sequence[np.ndarray]
) -> list[Hidden]:
    """What is kept of each round of a batch at its flat `entries`, for tensors whose axes are all ordered."""
    arrays, most = batch.arrays, max(map(len, entries))
    # Rounds with fewer entries repeat their first one: all rounds of a batch have arrays of the same shape.
    padded = np.stack([np.pad(one, (0, most - len(one)), constant_values=one[0] if len(one) else 0) for one in entries])
    features, depths = described_on_device(batch, describe, padded)
    at = arrays.put(padded.astype(np.int32))
    found = []
    gathered = {name: arrays.get(arrays.at(one, at)).astype(np.float64) for name, one in batch.members.items()}
    for b, (own, one) in enumerate(zip(entries, values)):
        n = len(own)
        members = {name: batch.data[b].undo(each[b, :n]).reshape(-1) for name, each in gathered.items()}
        around = np.empty((n, 0), np.float32)  # no correction is learned
        found.append(
            Hidden(
                own, one.reshape(-1)[own], estimate=batch.stack.mix(members), members=members,
                features=features[b, :n], depths=depths[b, :n], around=around,
            )
        )  # fmt: skip
    return found


def described_on_device(
    batch: BatchedFill, describe: EntryFeatures, entries: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Features and depths of the flat `entries` of each round, for tensors whose axes are all ordered."""
    centre, scale = (np.array([getattr(one, side).item() for one in batch.data]) for side in ("centre", "scale"))
    members = list(batch.members.values())
    return features_of_rounds(
        batch.arrays, describe, entries=entries, known=batch.known, kept=batch.kept, members=members,
        estimate=batch.mixed(), centre=centre, scale=scale,
    )  # fmt: skip


class Need(NamedTuple):
    """What rounds take of a device: how many fit there at once, their bytes, and the bytes that may be used."""

    at_once: int
    each: int
    room: int

    @property
    def bytes(self) -> int:
        return self.at_once * self.each

    @staticmethod
    def of(arrays: DeviceArrays, shape: Sequence[int], rounds: int) -> Need:
        each = BYTES_PER_ENTRY_AND_ROUND * prod(shape)
        room = arrays.memory() or int(USABLE_SHARE * available())
        return Need(int(min(rounds + 1, USABLE_SHARE * room // each)), each, room)


def rounds_on_device(
    engine: object, prepared: Prepared, shape: tuple[int, ...], rounds: int
) -> tuple[DeviceRounds | None, tuple[Choice, ...]]:
    """Rounds on the device of an engine, None on the host; and the record of where they run and why."""
    arrays = device_arrays(as_engine(engine))
    if arrays is None:
        return None, ()
    reason, need = why_not(prepared, shape), Need.of(arrays, shape, rounds)
    if reason is None and not need.at_once:
        of_all = in_words(need.room)
        reason = f"one round needs about {in_words(need.each)} of device memory, and {of_all} are available"
    if reason is not None:
        because = f"the engine is {arrays.label}, but {reason}"
        return None, (Choice("rounds run on", "this machine's processor", because, code="rounds_on_host"),)
    assert isinstance(prepared, PreparedStack)
    choice = Choice(
        "rounds run on",
        f"{arrays.label}, {need.at_once} at a time",
        "fills, features of the scale, held-out errors of covariances and passes over the mask; the likelihood of "
        "covariances and the trees of the scale are computed on the host. Predicted memory of the device: about "
        f"{in_words(need.bytes)}, of {in_words(need.room)}",
        code="rounds_on_device",
        values={"device": arrays.label, "rounds_at_once": need.at_once, "device_bytes": need.bytes},
    )
    return DeviceRounds(prepared, arrays, need.at_once), (choice,)
