"""Engines of one machine: threads, or the devices that JAX has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from corten.engine.passes import MaskPass, Model
from corten.engine.residuals import ResidualPass
from corten.engine.threads import default_threads


class Engine(Protocol):
    """A backend of passes. Results do not depend on it beyond rounding."""

    @property
    def label(self) -> str: ...
    def mask_pass(self, spins: np.ndarray, model: Model, train_share: float) -> MaskPass: ...
    def residual_pass(self, values: np.ndarray, mask: np.ndarray) -> ResidualPass: ...


@dataclass(frozen=True)
class Threads:
    """The default: compiled kernels on the cores of this machine. The same bits for any number of threads."""

    count: int | None = None

    @property
    def label(self) -> str:
        return f"threads ({self.count or default_threads()})"

    def mask_pass(self, spins: np.ndarray, model: Model, train_share: float) -> MaskPass:
        return MaskPass(spins, model, train_share, self.count)

    def residual_pass(self, values: np.ndarray, mask: np.ndarray) -> ResidualPass:
        return ResidualPass(values, mask, self.count)


def as_local_engine(engine: object) -> Engine:
    """An engine of this machine from "auto", "threads", "jax", "gpu", a number of threads, or an engine object."""
    if engine is None or engine in ("auto", "threads"):
        return Threads()
    if isinstance(engine, str) and engine in ("jax", "gpu"):
        from corten.engine.accelerator import Accelerator

        return Accelerator("gpu" if engine == "gpu" else "any")  # type: ignore[return-value]
    if isinstance(engine, int) and not isinstance(engine, bool):
        if engine < 1:
            raise ValueError(f"engine is {engine}; a number of threads must be at least 1")
        return Threads(engine)
    if hasattr(engine, "mask_pass") and hasattr(engine, "residual_pass"):
        return engine  # type: ignore[return-value]
    raise ValueError(
        f'engine is {engine!r}; give "auto", "threads", "jax", "gpu", "dask", a distributed.Client, a number of '
        "threads, or an engine object"
    )
