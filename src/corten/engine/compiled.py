"""Where Numba keeps compiled kernels on disk, and how many are there."""

from __future__ import annotations

from pathlib import Path


def kept_kernels() -> tuple[Path, int]:
    """The folder of the compiled kernels of the engine, and their number; 0 before the first fit on a machine."""
    from corten.engine.residuals import residual_box

    stats = getattr(residual_box, "stats", None)  # none where Numba is told not to compile
    folder = Path(__file__).parent / "__pycache__" if stats is None or not stats.cache_path else Path(stats.cache_path)
    return folder, sum(1 for _ in folder.glob("*.nbc")) if folder.is_dir() else 0
