"""`corten info`: versions, threads and engine, for bug reports."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

from corten import __version__
from corten.cli.options import with_options
from corten.cli.terminal import Terminal

_NEEDED = ("numpy", "scipy", "numba", "scikit-learn", "xarray", "pandas", "netCDF4", "matplotlib")
_EXTRA = ("zarr", "pyarrow", "jax", "dask", "distributed", "tensorly", "pyttb")


@with_options
def info(terminal: Terminal) -> None:
    """Show versions, threads, the engine and where compiled code is kept."""
    facts = gather()
    from rich.table import Table

    table = Table(show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {one}" for key, one in value.items() if one) or "none"
        table.add_row(name.replace("_", " "), str(value))
    terminal.say(table)
    terminal.answer(facts)


def gather() -> dict[str, object]:
    """Facts about this installation and machine."""
    from corten.engine import as_engine
    from corten.engine.compiled import kept_kernels
    from corten.engine.threads import default_threads

    folder, count = kept_kernels()
    return {
        "corten": __version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "engine": as_engine("auto").label,
        "threads": default_threads(),
        "libraries": {name: _version(name) for name in _NEEDED},
        "extras": {name: _version(name) for name in _EXTRA},
        "compiled_code": f"{folder} ({count} kernels; the first run compiles what is not there)",
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
