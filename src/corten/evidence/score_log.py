"""The log of past scores: what late data said about intervals that were given before they arrived."""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from corten.conformal.adaptive import AdaptiveCoverage
from corten.io.files import existing
from corten.io.whole import whole_file

Row: TypeAlias = dict[str, Any]
"""One row of a table: a name, and numbers."""

FORMAT, VERSION = "corten scores", 1
MAX_SLICE_ENTRIES = 1 << 31  # of one slice, that a line of a log may claim
WORST_BLOCKS = 3  # shown
MIN_STRETCHES = 8  # of time, whose errors count as independent


@dataclass(frozen=True)
class Grid:
    """Where scores belong: axis of the slices, shape of a slice, a digest of its labels, names of its blocks."""

    axis: str
    shape: tuple[int, ...]
    digest: str
    blocks: tuple[str, ...]


SUMS = ("entries", "covered", "score", "error", "infinite")
"""Of counted entries: their number, that of covered ones, sums of finite interval scores and absolute errors, and the
number of infinite intervals."""


@dataclass(frozen=True, eq=False)
class SliceScores:
    """Scores of one slice in one step."""

    step: int  # number of the verification
    name: str  # coordinate of the slice
    coverage: float  # of the intervals
    target: float | None  # nominal coverage if the level was adaptive
    which: np.ndarray = field(repr=False)  # True at the entries that were counted
    sums: np.ndarray = field(repr=False)  # (SUMS, blocks of the slice)

    @property
    def series(self) -> float:
        """What makes a series of one coverage: the target, or the coverage itself."""
        return self.coverage if self.target is None else self.target

    def to_line(self) -> str:
        """One line of a log."""
        packed = base64.b64encode(zlib.compress(np.packbits(self.which).tobytes(), 9)).decode("ascii")
        sums = dict(zip(SUMS, self.sums.tolist()))
        about = {"step": self.step, "slice": self.name, "coverage": self.coverage, "target": self.target}
        return json.dumps({**about, **sums, "which": packed})

    @staticmethod
    def of_line(line: dict[str, Any], grid: Grid) -> SliceScores:
        """The scores of one line; the sums must fit the grid."""
        count = int(np.prod(grid.shape, dtype=np.int64))
        need = (count + 7) // 8
        decoder = zlib.decompressobj()
        bits = decoder.decompress(base64.b64decode(line["which"]), need)  # no more, whatever the line claims
        if len(bits) != need:
            raise ValueError("it marks entries of another shape")
        which = np.unpackbits(np.frombuffer(bits, np.uint8), count=count).astype(bool)
        sums = np.array([line[name] for name in SUMS], np.float64)
        if sums.shape != (len(SUMS), len(grid.blocks)) or sums[0].sum() != which.sum():
            raise ValueError("its sums do not belong together")
        target = None if line["target"] is None else float(line["target"])
        return SliceScores(int(line["step"]), str(line["slice"]), float(line["coverage"]), target, which, sums=sums)


@dataclass(frozen=True, eq=False)
class ScoreLog:
    """Scores of intervals whose values arrived later: coverage over time, interval scores, and where they fail.

    Returned by `Fitted.verify` and `ScoreLog.read`.

    Parameters
    ----------
    grid : Grid
        Where the scores belong.
    records : tuple of SliceScores
        Scores, in the order in which they were counted.
    added : int, default 0
        How many entries the last verification counted; entries of earlier ones are not counted again.

    Examples
    --------
    >>> scores = fitted.verify(late, log="scores.jsonl")             # doctest: +SKIP
    >>> print(scores)                                                # doctest: +SKIP
    >>> scores.adaptive(0.9).next_coverage                                   # doctest: +SKIP
    """

    grid: Grid
    records: tuple[SliceScores, ...] = ()
    added: int = 0

    @staticmethod
    def read(path: str | os.PathLike[str]) -> ScoreLog:
        """Read a log that `verify` wrote; a ValueError names the line if the file is no log, or damaged."""
        found = existing(path)
        number = 0
        try:
            with found.open(encoding="utf-8") as stream:
                records, grid = [], None
                for text in stream:
                    number += 1
                    line = json.loads(text)
                    if grid is None:
                        grid = _grid_of(line)
                    else:
                        records.append(SliceScores.of_line(line, grid))
            if grid is None:
                raise ValueError("it is empty")
        except Exception as problem:  # damaged content can raise anything
            detail = " ".join(str(problem).split()) or type(problem).__name__
            raise ValueError(f"{found}, line {number}: not a log of scores, or damaged: {detail}") from None
        return ScoreLog(grid, tuple(records))

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the log, whole or not at all; an older one is replaced."""
        about = {"format": FORMAT, "version": VERSION, "axis": self.grid.axis, "shape": list(self.grid.shape)}
        head = json.dumps({**about, "digest": self.grid.digest, "blocks": list(self.grid.blocks)})
        with whole_file(path, overwrite=True) as temporary:
            lines = [head, *(one.to_line() for one in self.records)]
            temporary.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
        return Path(path)

    def with_new(self, records: Iterable[SliceScores]) -> ScoreLog:
        """The log with further records; their step is one after the last."""
        step = 1 + max((one.step for one in self.records), default=0)
        new = tuple(replace(one, step=step) for one in records)
        return replace(self, records=(*self.records, *new), added=int(sum(one.sums[0].sum() for one in new)))

    def counted(self, name: str, series: float) -> np.ndarray:
        """True at the entries of a slice that were counted before, at one coverage."""
        which = np.zeros(int(np.prod(self.grid.shape, dtype=np.int64)), bool)
        for one in self.records:
            if one.name == name and one.series == series:
                which |= one.which
        return which

    @property
    def entries(self) -> int:
        """Number of entries that were counted."""
        return int(sum(one.sums[0].sum() for one in self.records))

    @cached_property
    def _all(self) -> Row:
        return _row("axis", self.grid.axis, self.records)

    @property
    def coverage(self) -> float:
        """Share of the entries in their intervals; NaN without entries."""
        return float(self._all["coverage"])

    @property
    def nominal(self) -> float:
        """The mean nominal coverage of the intervals, over entries."""
        return float(self._all["nominal"])

    @property
    def interval_score(self) -> float:
        """Mean interval score of the finite intervals; lower is better."""
        return float(self._all["interval_score"])

    @property
    def standard_error(self) -> float:
        """Standard error of `coverage`: the larger of two that allow for correlated errors.

        One takes each block of a slice in each verification as one observation, the other each of at least eight
        stretches of time.
        """
        steps = self._grouped("step")
        places, stretches = [], []
        for some in steps.values():
            places += list(_total(some)[:2].T)
            parts = min(len(some), -(-MIN_STRETCHES // len(steps)))
            ordered = sorted(some, key=lambda one: _in_order(one.name))
            for k in range(parts):
                own = ordered[k * len(some) // parts : (k + 1) * len(some) // parts]
                stretches.append(_total(own)[:2].sum(axis=1))
        return float(np.fmax(_clustered(*np.reshape(places, (-1, 2)).T), _clustered(*np.reshape(stretches, (-1, 2)).T)))

    def _grouped(self, key: str) -> dict[Any, list[SliceScores]]:  # by a name, or a number
        """The records with each value of an attribute."""
        groups: dict[Any, list[SliceScores]] = {}
        for one in self.records:
            groups.setdefault(getattr(one, key), []).append(one)
        return groups

    def over_time(self) -> list[Row]:
        """One row for each slice, in order of its name.

        With keys slice, entries, nominal, coverage, standard_error, interval_score, mean_error, infinite.
        """
        by_name = self._grouped("name")
        return [_row("slice", name, by_name[name]) for name in sorted(by_name, key=_in_order)]

    def by_step(self) -> list[Row]:
        """One row for each verification, with the same keys as `over_time` and step instead of slice."""
        return [_row("step", step, some) for step, some in sorted(self._grouped("step").items())]

    def by_block(self) -> list[Row]:
        """One row for each block of a slice, the lowest coverage first: where intervals fail.

        With keys block, entries, nominal, coverage, standard_error (slices count as independent).
        """
        rows = []
        for b, name in enumerate(self.grid.blocks):
            n, k = np.reshape([one.sums[:2, b] for one in self.records], (-1, 2)).T
            if n.sum() > 0:
                nominal = float(sum(one.coverage * one.sums[0, b] for one in self.records) / n.sum())
                found = float(k.sum() / n.sum())
                rows.append({"block": name, "entries": int(n.sum()), "nominal": nominal, "coverage": found,
                             "standard_error": _clustered(n, k)})  # fmt: skip
        return sorted(rows, key=lambda row: row["coverage"] - row["nominal"])

    def adaptive(self, coverage: float = 0.9, rate: float = 0.05) -> AdaptiveCoverage:
        """The adaptive level after all steps that were verified with ``target=coverage``, see `AdaptiveCoverage`.

        >>> result = fitted.fill(x, coverage=scores.adaptive(0.9).next_coverage)     # doctest: +SKIP
        """
        own = replace(self, records=tuple(one for one in self.records if one.target == coverage))
        return AdaptiveCoverage(coverage, rate).after_all(1.0 - row["coverage"] for row in own.by_step())

    def summary(self) -> Row:
        """Plain numbers: entries, nominal and found coverage, standard error, interval score, slices."""
        return {
            "entries": self.entries, "added": self.added, "slices": len({one.name for one in self.records}),
            "nominal": self.nominal, "coverage": self.coverage, "standard_error": self.standard_error,
            "interval_score": self.interval_score,
        }  # fmt: skip

    def __str__(self) -> str:
        if not self.entries:
            return "no value has arrived for a filled entry"
        facts = self.summary()
        lines = [
            f"{facts['entries']:,} entries of {facts['slices']} slices along {self.grid.axis} ({self.added:,} new)",
            f"coverage {self.coverage:.2%} ± {self.standard_error:.2%} (nominal {self.nominal:.2%}); "
            f"mean interval score {self.interval_score:.4g}",
        ]
        for row in self.by_block()[:WORST_BLOCKS] if len(self.grid.blocks) > 1 else ():
            lines.append(f"  {row['block']}: {row['coverage']:.2%} ± {row['standard_error']:.2%}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<ScoreLog {self.entries} entries, coverage {self.coverage:.4g} (nominal {self.nominal:.4g})>"


def _grid_of(line: dict[str, Any]) -> Grid:
    if line["format"] != FORMAT or line["version"] > VERSION:
        raise ValueError(f"it is version {line['version']} of {line['format']!r}; this corten reads version {VERSION}")
    shape = tuple(int(n) for n in line["shape"])
    if min(shape, default=1) < 1 or np.prod([float(n) for n in shape]) > MAX_SLICE_ENTRIES:
        raise ValueError(f"its slices have shape {shape}")
    return Grid(str(line["axis"]), shape, str(line["digest"]), tuple(str(one) for one in line["blocks"]))


def _row(kind: str, name: str | int, some: Sequence[SliceScores]) -> Row:
    """One row of a table over slices or steps; NaN where there are no entries."""
    if not some:
        return dict.fromkeys(("nominal", "coverage", "interval_score"), float("nan"))
    total, covered, score, error, infinite = sum((one.sums.sum(axis=1) for one in some), np.zeros(len(SUMS))).tolist()
    return {
        kind: name,
        "entries": int(total),
        "nominal": float(sum(one.coverage * one.sums[0].sum() for one in some)) / total,
        "coverage": covered / total,
        "standard_error": _clustered(*_total(some)[:2]),
        "interval_score": score / (total - infinite) if total > infinite else float("nan"),
        "mean_error": error / total,
        "infinite": int(infinite),
    }


def _total(some: Sequence[SliceScores]) -> np.ndarray:
    """The sums of every block over records."""
    return np.asarray(np.sum([one.sums for one in some], axis=0))


def _clustered(n: np.ndarray, k: np.ndarray) -> float:
    """Standard error of sum(k) / sum(n), with each pair one independent observation; NaN for fewer than two."""
    k, n = k[n > 0], n[n > 0]
    if len(n) < 2:
        return float("nan")
    off = k - n * (k.sum() / n.sum())
    return float(np.sqrt((off**2).sum() * len(n) / (len(n) - 1)) / n.sum())


def _in_order(name: str) -> tuple[int, float, str]:
    """Numbers by their size, dates and other names as text."""
    try:
        return (0, float(name), "")
    except ValueError:
        return (1, 0.0, name)
