"""`corten bench`: speed and memory beside plain implementations and peers, as ratios from one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["bench"]


def bench(
    case: Annotated[
        list[str] | None, typer.Option(help="passes, fits, sampling, conformal or peers; several may be given.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder for bench.json, bench.md and bench.png.")] = Path("bench-output"),
    page: Annotated[Path | None, typer.Option(help="Also write the documentation's page of benchmarks here.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, to see that everything runs.")] = False,
) -> None:
    """Measure corten against plain NumPy and peers; losses are shown as well as wins."""
    from rich.console import Console

    from corten.bench.run import markdown, met, run_cases, write, write_page

    console = Console()

    def tell(row: object) -> None:
        from corten.bench.cases import Row

        assert isinstance(row, Row)
        asked = f" (asked {row.asked}: {met(row)})" if row.asked else ""
        console.print(f"{row.what}: {row.ratio:.3g} times {row.against}{asked} {row.note}", highlight=False)

    rows = run_cases(case or None, quick, tell)
    paths = write(rows, output)
    if page is not None:
        paths.append(write_page(rows, output, page))
    console.print(markdown(rows), highlight=False, soft_wrap=True)
    console.print("written: " + ", ".join(map(str, paths)))
