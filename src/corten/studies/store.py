"""Results on disk.

A small Parquet file per finished cell, written whole or not at all, with its parameters and the version of the code.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from corten.io.whole import whole_file
from corten.studies.cells import Cell

__all__ = ["Store", "code_version"]

Row = dict[str, Any]


@cache
def code_version() -> str:
    """The package's version, with the commit where it runs from a checkout."""
    from corten import __version__

    here = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return __version__
    return f"{__version__}+{found.stdout.strip()}"


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
        return self._file(cell).exists()

    def write(self, cell: Cell, rows: Sequence[Row], seconds: float) -> None:
        """Keep a finished cell. The file appears at once and complete, whatever kills the process."""
        pyarrow, _ = _arrow()
        front = {**cell.as_dict(), "version": code_version(), "cell_seconds": seconds}
        front = {k: json.dumps(v) if isinstance(v, list | tuple) else v for k, v in front.items()}
        table = pyarrow.Table.from_pylist(_even([{**front, **row} for row in rows]))
        facts = {"cell": json.dumps(cell.as_dict()), "version": code_version()}
        self._save(table.replace_schema_metadata(facts), self._file(cell))

    def rows(self, experiment: str, cells: Iterable[Cell] | None = None) -> list[Row]:
        """All rows of an experiment, or of the given cells as far as they are done."""
        _, parquet = _arrow()
        if cells is None:
            files = sorted((self.folder / "cells" / experiment).glob("[!.]*.parquet"))
        else:
            files = sorted({self._file(cell) for cell in cells if cell.experiment == experiment and cell in self})
        return [row for file in files for row in parquet.ParquetFile(file).read().to_pylist()]

    def gather(self, experiment: str) -> Path | None:
        """All cells of an experiment in one file, for whoever wants to look at them elsewhere."""
        pyarrow, _ = _arrow()
        rows = self.rows(experiment)
        if not rows:
            return None
        file = self.folder / f"{experiment}.parquet"
        facts = {"versions": json.dumps(sorted({row["version"] for row in rows}))}
        self._save(pyarrow.Table.from_pylist(_even(rows)).replace_schema_metadata(facts), file)
        return file

    def _file(self, cell: Cell) -> Path:
        return self.folder / "cells" / cell.experiment / f"{cell.key}.parquet"

    def _save(self, table: Any, file: Path) -> None:
        _, parquet = _arrow()
        file.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(file, overwrite=True) as temporary:
            parquet.write_table(table, temporary)


def _even(rows: Sequence[Row]) -> list[Row]:
    """Rows with the same columns: what one row lacks is null."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: row.get(name) for name in names} for row in rows]


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as missing:
        raise ImportError("studies keep their results as Parquet: pip install 'corten[files]'") from missing
    return pyarrow, parquet
