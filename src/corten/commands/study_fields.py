"""`corten study tec`: the paper's application on real fields, with finite share and widths beside coverage."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from corten.commands.terminal import typed

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
    page: Annotated[Path | None, typer.Option(help="Also write a page of all rows in the folder, as Markdown.")] = None,
    validate: Annotated[
        bool, typer.Option("--validate", help="The paper's grid search of the coupling, on the first set.")
    ] = False,
) -> None:
    """Run the paper's section 5 on real fields: unweighted, Bernoulli, Ising, and our defaults.

    Rows that the output folder holds from the same version of the code are not computed again.
    """
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
        console.print(fields.verdict(found), highlight=False)
        paths = fields.write_rows(found, output, fields.VALIDATION)
        console.print("written: " + ", ".join(map(str, paths)))
        return
    methods = method or list(fields.METHODS)
    earlier = fields.read_rows(output)
    kept: dict[str, dict[str, Any]] = {}
    written: list[Path] = []

    def store(row: Any) -> None:
        """A row is on disk as soon as it is known, so that a run that was stopped goes on where it was."""
        tell(row)
        same = (row.set, row.method, row.seed)
        earlier[:] = [*(old for old in earlier if (old.set, old.method, old.seed) != same), row]
        written[:2] = fields.write_rows(earlier, output)

    def keep(one: Any, name: str, seed: int, result: Any) -> None:
        if seed == 0:
            results = kept.setdefault(one.name, {})
            results[name] = result
            if len(results) == len(methods):  # a run that went on knows some methods by their rows only
                draw_bins(one, results, output / f"{one.name}-bins.png")
                draw_maps(one, result, output / f"{one.name}-maps.png")

    fields.run_fields(chosen, methods, seeds, data, store, keep, list(earlier))
    if page is not None:
        from corten.studies.field_page import write_page

        written.append(write_page(earlier, page, output, typed()))
    console.print("written: " + ", ".join(map(str, written)))
