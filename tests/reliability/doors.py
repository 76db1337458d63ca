"""The ways by which a file of others enters corten: read at once, as the program does first, in parts, as a result."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

import corten
from corten import io
from corten.cli.complete import too_large
from corten.cli.evaluate import compare
from corten.io.lazy import OPENABLE, open_lazily, stored_size
from corten.large.needs import BASE, Needs
from reliability.corpus import CORPUS, RESULTS, Content

__all__ = ["DOORS", "LIMIT", "doors_of", "whole_files"]

LIMIT = 64 * 2**20  # what a file may need, by max_bytes and CORTEN_MEMORY


def read(path: Path, careful: bool = False) -> object:
    """At once, by `corten.io.read` or `corten.load`."""
    if path.suffix == ".corten":
        return corten.load(path).intervals(0.9).estimate
    try:
        return io.read(path, max_bytes=LIMIT, careful=careful).data
    except ValueError as problem:
        for name in ("tec", "mad"):
            if "several variables" in str(problem) and name in str(problem):
                return io.read(path, name, max_bytes=LIMIT, careful=careful).data
        raise


def program(path: Path, careful: bool = True) -> object:
    """What `corten complete` does before it fits, and `corten audit` all but the first of."""
    too_large(path, None, None)
    return read(path, careful=True)


def in_parts(path: Path, careful: bool = False) -> object:
    """The first and the last planes, as many as memory allows."""
    if careful and not stored_size(path):  # looked at in a process of its own: the program reads it all at once, then
        return read(path, careful=True)
    try:
        with open_lazily(path) as lazy:
            step = Needs.of(lazy, BASE + 3 * LIMIT, arrays=3, threads=1).block
            last = (lazy.shape[0] - 1) // step * step
            return [lazy.read(start, min(start + step, lazy.shape[0]))[0] for start in {0, last}][-1]
    except (TypeError, MemoryError) as problem:
        # Values that are no numbers, and planes too large for memory: the program says these in one line too.
        if path.name in str(problem):
            raise ValueError(str(problem)) from None
        raise


def evaluated(path: Path, careful: bool = True) -> object:
    """As `corten evaluate` does, against a truth that is whole."""
    truth = path.with_name("truth.npy")
    if not truth.exists():
        np.save(truth, np.zeros((4, 5)))
    return compare(path, truth, coverage=0.9)["entries"]


DOORS: dict[str, Callable[[Path, bool], object]] = {
    "read": read, "program": program, "in parts": in_parts, "evaluated": evaluated,
}  # fmt: skip


@cache
def doors_of(kind: str) -> tuple[str, ...]:
    """Doors that a file of the kind may take, each as often as it is tried; reading alone is the fastest by far."""
    doors = ["read"] * 6
    doors += ["program"] if kind != ".corten" else []
    doors += ["in parts"] * 3 if kind in OPENABLE else []
    doors += ["evaluated"] if kind in RESULTS else []
    return tuple(doors)


def whole_files(kind: str, door: str) -> list[Content]:
    """Files without damage: data, or results where the door is for results."""
    return RESULTS[kind] if door == "evaluated" else CORPUS[kind]
