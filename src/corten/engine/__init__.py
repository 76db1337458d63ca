"""Passes over mask and data on threads, JAX devices or a Dask cluster."""

from __future__ import annotations

from corten.engine.local import Engine, Threads, as_local_engine
from corten.engine.passes import MaskPass, Model
from corten.engine.residuals import ResidualPass

__all__ = ["Engine", "MaskPass", "Model", "ResidualPass", "Threads", "as_engine"]


def check_engine(engine: object) -> None:
    """Refuse what is no engine. Nothing is started: a GPU or a cluster is looked for when it is used."""
    if not (isinstance(engine, str) and engine in ("jax", "gpu", "dask")):
        as_engine(engine)


def as_engine(engine: object) -> Engine:
    """An engine from what a user writes: "auto" or "threads", "jax" or "gpu", "dask" or a client, a number of threads.

    "jax" runs on the devices of JAX; "gpu" is the same but refuses to run without a GPU. A `distributed.Client` means
    the workers of its cluster, "dask" the client of the process, or a new one with a worker inside this process, which
    listens on the loopback address only. An engine object is returned as it is.
    """
    if isinstance(engine, str) and engine == "dask":
        from corten.engine.cluster import default_client

        engine = default_client()
    if type(engine).__module__.startswith("distributed."):
        from corten.engine.cluster import Cluster

        return Cluster(engine)  # type: ignore[return-value, arg-type]  # a client by its module
    return as_local_engine(engine)
