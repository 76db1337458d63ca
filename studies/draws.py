"""What a cell is about: the parameter B*, a mask drawn from it, data and noise; all from seeds, masks of a chain kept
on disk.

Readings of the paper, where it leaves a choice: B* depends on size, rank and the number of its draw, and serves both
the Bernoulli and the Ising
model, so that they can be compared; repetitions are successive samples of one chain; signal, noise and split are new
in each repetition.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from corten import SplitCalibration, simulate
from studies.cells import Cell, seed_of
from studies.files import whole_file

__all__ = ["STRENGTH", "TRAIN_SHARE", "data_of", "ensure_chain", "mask_of", "parameter_of", "split_seed", "training_of"]

STRENGTH = 1 / 15
TRAIN_SHARE = 0.7


def parameter_of(cell: Cell) -> np.ndarray:
    """B*: the block model of the cell's size and rank."""
    d, rank, draw = cell["d"], cell["rank"], cell.get("draw", 0)
    return simulate.block_parameter((d, d, d), rank, seed_of("parameter", d, rank, draw))


def mask_of(cell: Cell, folder: Path | None = None) -> np.ndarray:
    """The cell's mask.

    An independent draw (Bernoulli), or the sample of its chain that has the repetition's number (Ising).
    """
    parameter = parameter_of(cell)
    if cell["model"] == "bernoulli":
        seed = seed_of("mask", cell["d"], cell["rank"], cell.get("draw", 0), cell.repetition)
        return simulate.bernoulli(parameter, seed=seed)
    if folder is not None:
        ensure_chain(cell, cell.repetition + 1, folder)
        return _stored(_chain_file(cell, folder))[cell.repetition]
    return _chain(cell, cell.repetition + 1)[-1]


def data_of(cell: Cell, parameter: np.ndarray, noise: str, signal_rank: int = 3) -> np.ndarray:
    """X = X* + E of a noise regime, the noise in the paper's scaling."""
    what = (cell["d"], cell["rank"], cell.get("draw", 0), cell.repetition)
    signal = simulate.tucker_signal(parameter.shape, signal_rank, seed_of("signal", signal_rank, *what))
    kind: Any = noise
    return signal + simulate.noise(parameter, kind, signal, seed=seed_of("noise", noise, *what))


def split_seed(cell: Cell) -> int:
    """The seed that splits observed entries into training and calibration entries."""
    return seed_of("split", cell["d"], cell["rank"], cell["model"], cell.get("draw", 0), cell.repetition)


def training_of(cell: Cell, mask: np.ndarray) -> np.ndarray:
    """The training part of a mask, split as every experiment of the cell splits it."""
    return SplitCalibration(TRAIN_SHARE).plan(SimpleNamespace(mask=mask), split_seed(cell)).rounds[0].train


def ensure_chain(cell: Cell, samples: int, folder: Path) -> None:
    """Draw the cell's chain of masks once and keep it, unless it is there with enough samples."""
    file = _chain_file(cell, folder)
    if cell["model"] != "ising" or (file.exists() and len(_stored(file)) >= samples):
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    taken = _chain(cell, samples)
    with whole_file(file) as temporary:
        np.savez(temporary, bits=np.packbits(taken.reshape(samples, -1), axis=1), shape=taken.shape[1:])


def _chain(cell: Cell, samples: int) -> np.ndarray:
    """The first samples of the chain: the n-th does not depend on how many are asked for."""
    burn_in, thin = cell["burn_in"], cell["thin"]
    seed = seed_of("chain", cell["d"], cell["rank"], cell.get("draw", 0))
    taken = simulate.ising(
        parameter_of(cell),
        STRENGTH,
        sweeps=burn_in + thin * samples,
        burn_in=burn_in,
        thin=thin,
        samples=samples,
        seed=seed,
        threads=1,
    )
    return taken.reshape(samples, *taken.shape[-3:])


def _chain_file(cell: Cell, folder: Path) -> Path:
    name = f"d{cell['d']}-r{cell['rank']}-draw{cell.get('draw', 0)}-{cell.get('burn_in')}-{cell.get('thin')}.npz"
    return folder / "chains" / name


def _stored(file: Path) -> np.ndarray:
    with np.load(file) as kept:
        shape = tuple(kept["shape"])
        bits = np.unpackbits(kept["bits"], axis=1, count=int(np.prod(shape)))
    return bits.reshape(len(bits), *shape).astype(bool)
