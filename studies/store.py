"""Results on disk.

A small Parquet file per finished cell, written whole or not at all, with its parameters, the version of the code and a
checksum: what a disk has damaged since is noticed.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from studies.cells import Cell
from studies.files import whole_file

__all__ = ["Damaged", "Store", "code_version"]

Row = dict[str, Any]
FORMAT = b"2"
OLD = {b"cell", b"version"}  # what cells said of themselves in the first format, which had no checksum


class Damaged(ValueError):
    """A stored cell that cannot be read, or is not what was written."""


@cache
def code_version() -> str:
    """The package's version, with the commit where it runs from a checkout, and `+` where the code differs from it."""
    from corten import __version__

    root = Path(__file__).parents[1]
    try:
        commit = _git(root, "rev-parse", "--short", "HEAD")
        changed = _git(root, "status", "--porcelain", "--", "src", "studies")
    except (OSError, subprocess.SubprocessError):
        return __version__
    return f"{__version__}+{commit}{'+' if changed else ''}"


def _git(folder: Path, *asked: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(folder), *asked]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()


class Store:
    """A folder of finished cells. A cell that is there is not done again.

    Example:
        >>> from tempfile import mkdtemp
        >>> store, cell = Store(mkdtemp()), Cell.of("conformal", 0, d=40)
        >>> store.write(cell, [{"miscoverage": 0.4}], seconds=1.0)
        >>> cell in store, store.rows("conformal")[0]["miscoverage"]
        (True, 0.4)
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def __contains__(self, cell: Cell) -> bool:
        """Whether the cell is there, and whole."""
        try:
            _whole(self.file(cell))
        except (FileNotFoundError, Damaged):
            return False
        return True

    def seal(self) -> None:
        """Give cells of the first format, as far as they can be read, their checksum. What they say stays as it is."""
        for file in (self.folder / "cells").glob("*/[!.]*.parquet"):
            with suppress(Damaged):
                table = _whole(file)
                if table.schema.metadata.keys() == OLD:
                    self._save(_sealed(table), file)

    def write(self, cell: Cell, rows: Sequence[Row], seconds: float) -> None:
        """Keep a finished cell. The file appears at once and complete, whatever kills the process."""
        pyarrow, _ = _arrow()
        front = {**cell.as_dict(), "version": code_version(), "cell_seconds": seconds}
        front = {k: json.dumps(v) if isinstance(v, list | tuple) else v for k, v in front.items()}
        table = pyarrow.Table.from_pylist(_even([{**front, **row} for row in rows]))
        facts = {"cell": json.dumps(cell.as_dict()), "version": code_version()}
        self._save(_sealed(table.replace_schema_metadata(facts)), self.file(cell))

    def rows(self, experiment: str, cells: Iterable[Cell] | None = None) -> list[Row]:
        """All rows of an experiment, or of the given cells as far as they are done: a damaged one is not."""
        if cells is None:
            files = sorted((self.folder / "cells" / experiment).glob("[!.]*.parquet"))
            return [row for file in files for row in _whole(file).to_pylist()]
        found: list[Row] = []
        for file in sorted({self.file(cell) for cell in cells if cell.experiment == experiment}):
            with suppress(FileNotFoundError, Damaged):
                found += _whole(file).to_pylist()
        return found

    def gather(self, experiment: str, cells: Iterable[Cell]) -> Path | None:
        """The rows of an experiment in one file, for whoever wants to look at them elsewhere."""
        pyarrow, _ = _arrow()
        rows = self.rows(experiment, cells)
        if not rows:
            return None
        file = self.folder / f"{experiment}.parquet"
        facts = {"versions": json.dumps(sorted({row["version"] for row in rows}))}
        self._save(pyarrow.Table.from_pylist(_even(rows)).replace_schema_metadata(facts), file)
        return file

    def file(self, cell: Cell) -> Path:
        """Where the cell is kept, once it is done."""
        return self.folder / "cells" / cell.experiment / f"{cell.key}.parquet"

    def _save(self, table: Any, file: Path) -> None:
        _, parquet = _arrow()
        file.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(file) as temporary:
            parquet.write_table(table, temporary)


def _even(rows: Sequence[Row]) -> list[Row]:
    """Rows with the same columns: what one row lacks is null."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: row.get(name) for name in names} for row in rows]


def _whole(file: Path) -> Any:
    """The table in a file, if it is what was written."""
    _, parquet = _arrow()
    try:
        table = parquet.ParquetFile(file).read()
        facts = table.schema.metadata or {}
        kept = facts.keys() == OLD or (facts[b"format"], facts[b"sha256"]) == (FORMAT, _checksum(table))
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as problem:  # the library has many words for damaged bytes
        raise Damaged(f"{file} is damaged ({problem}): run the study again to compute this cell again") from None
    if not kept:
        raise Damaged(f"{file} is not what was written: run the study again to compute this cell again")
    return table


def _sealed(table: Any) -> Any:
    facts = {**table.schema.metadata, b"format": FORMAT, b"sha256": _checksum(table)}
    return table.replace_schema_metadata(facts)


def _checksum(table: Any) -> bytes:
    """Of all that a cell says. Values, not bytes of the file: other releases of the library pack them in other ways."""
    said = [table.schema.metadata[name].decode() for name in sorted(OLD)]
    return sha256(json.dumps([said, table.to_pylist()], default=str).encode()).hexdigest().encode()


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as missing:
        raise ImportError("studies keep their results as Parquet: pip install 'corten[files]'") from missing
    return pyarrow, parquet
