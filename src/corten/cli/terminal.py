"""Output of the commands: tables on stdout, progress on stderr, JSON for scripts; and the options all share."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

import typer

from corten.data.printable import printable

__all__ = ["FORMATS", "Json", "Overwrite", "Quiet", "Seed", "Terminal", "numbers", "remember", "typed"]

FORMATS = ".nc .zarr .npz .npy .csv .parquet .mat .h5 .tif .grib or IONEX"
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace output files that exist.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Seed; the same seed gives the same bits.")]

_command: ContextVar[str] = ContextVar("command", default="")

STAGES = {
    "reading": "reading",
    "completion": "filling the gaps",
    "missingness": "modelling the missingness",
    "calibration": "calibrating",
    "writing": "writing",
}


@dataclass(frozen=True)
class Terminal:
    """Where a command prints; `as_json` keeps stdout for one JSON object."""

    quiet: bool = False
    as_json: bool = False

    def say(self, what: Any, *, style: str | None = None) -> None:
        """Show text or a table to a person."""
        if self.quiet or self.as_json:
            return
        _console()(soft_wrap=isinstance(what, str)).print(what, style=style, markup=False, highlight=False)

    def answer(self, facts: dict[str, Any]) -> None:
        """Print the JSON object that scripts read."""
        if self.as_json:
            from corten.results.summary import plain

            print(json.dumps(plain(facts), indent=2))

    @contextmanager
    def progress(self) -> Iterator[Callable[[str, float], None]]:
        """A bar per stage with the time left, on a terminal only; gives the function that moves them."""
        if self.quiet or not sys.stderr.isatty():
            yield lambda stage, share: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with Progress(
            *columns, TextColumn("left"), TimeRemainingColumn(), console=Console(stderr=True), transient=True
        ) as bars:
            tasks: dict[str, Any] = {}

            def move(stage: str, share: float) -> None:
                if stage not in tasks:
                    for earlier in tasks.values():
                        bars.update(earlier, total=1.0, completed=1.0)
                    # A stage without progress yet pulses instead of showing 0 %.
                    tasks[stage] = bars.add_task(STAGES.get(stage, stage), total=None)
                if share > 0:
                    bars.update(tasks[stage], total=1.0, completed=min(share, 1.0))

            yield move


@cache
def _console() -> Any:
    from rich.console import Console
    from rich.segment import Segment

    class Careful(Console):
        """Shows labels of a file as they are written, whatever they hold."""

        def render(self, renderable: Any, options: Any = None) -> Any:
            for part in super().render(renderable, options):
                yield part if part.control else Segment(printable(part.text), part.style)

    return Careful


def typed() -> str:
    """The command that is running, as it was typed; empty outside a command."""
    return _command.get()


def remember(arguments: Sequence[str]) -> None:
    """Keep the command that begins to run, for `typed`."""
    _command.set(shlex.join(["corten", *arguments]))


def numbers(text: str, name: str) -> list[float]:
    """Numbers separated by commas, as `0.8,0.9`.

    Examples
    --------
    >>> numbers("0.8,0.9", "coverage")
    [0.8, 0.9]
    """
    try:
        found = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        found = []
    if not found:
        raise ValueError(f"{name} is {text!r}: give numbers separated by commas, such as 0.8,0.9")
    return found
