"""`corten study tec`: the paper's application on real fields, with finite share and widths beside coverage."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["tec"]

PAPER = ("tec-america-1", "tec-america-2")


def tec(
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="A set, or 'all'; several may be given.", show_default="tec-america-1, -2"),
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="unweighted, Bernoulli, 'Ising 5xy/4' or corten.", show_default="all four")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions with different splits.")] = 1,
    data: Annotated[Path | None, typer.Option(help="Folder of the data.", show_default="../shared/data")] = None,
    output: Annotated[Path, typer.Option(help="Folder for tables and figures.")] = Path("study-output/fields"),
    validate: Annotated[
        bool, typer.Option("--validate", help="The paper's grid search of the coupling, on the first set.")
    ] = False,
) -> None:
    """Run the paper's section 5 on real fields: unweighted, Bernoulli, Ising, and our defaults."""
    from rich.console import Console

    from corten.studies import fields
    from corten.studies.field_figures import draw_bins, draw_maps
    from corten.studies.field_sets import SETS

    console = Console()
    chosen = list(SETS) if sets == ["all"] else sets or list(PAPER)

    def tell(row: Any) -> None:
        console.print(fields.markdown([row]).splitlines()[-1], highlight=False, soft_wrap=True)

    if validate:
        found = fields.validate(chosen[0], data, tell=tell)
        console.print(fields.markdown(found), highlight=False, soft_wrap=True)
        console.print(fields.verdict(found), highlight=False)
        return
    kept: dict[str, dict[str, Any]] = {}
    known: dict[str, Any] = {}

    def keep(one: Any, name: str, seed: int, result: Any) -> None:
        if seed == 0:
            known[one.name] = one
            kept.setdefault(one.name, {})[name] = result

    rows = fields.run_fields(chosen, method or list(fields.METHODS), seeds, data, tell, keep)
    written = fields.write_rows(rows, output)
    for name, results in kept.items():
        written.append(draw_bins(known[name], results, output / f"{name}-bins.png"))
        written.append(draw_maps(known[name], list(results.values())[-1], output / f"{name}-maps.png"))
    console.print("written: " + ", ".join(map(str, written)))
