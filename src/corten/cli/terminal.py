"""Output of the commands: tables on stdout, progress on stderr, JSON for scripts; and the options all share."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from corten.data.plain import Json, plain
from corten.data.printable import printable, spelling
from corten.results.progress import COMPILING_SECONDS, STAGES, Predicted, compiling
from corten.results.summary import duration

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.progress import Task

READABLE_FORMATS = ".nc .zarr .npz .npy .csv .parquet .mat .h5 .tif .grib or IONEX"
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace output files that exist.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Seed; the same seed gives the same bits.")]


def option(metavar: str, text: str, *names: str, **more: Any) -> Any:
    """An option of a command; the name is that of the parameter unless others are given."""
    return typer.Option(*names, metavar=metavar, help=text, **more)


def argument(metavar: str, text: str) -> Any:
    """A required argument of a command."""
    return typer.Argument(metavar=metavar, help=text, show_default=False)


_command: ContextVar[str] = ContextVar("command", default="")

ALMOST_DONE = 0.9  # of the whole
TRUST_PREDICTION_BELOW = 0.25  # of the whole; later the time left follows from the time that has passed

_active: ContextVar[_Bar | None] = ContextVar("bar", default=None)


@dataclass(frozen=True)
class Terminal:
    """Where a command prints, with the options that all commands have; `json` keeps stdout for one JSON object."""

    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False

    def say(self, what: object, *, style: str | None = None) -> None:
        """Show text or a table to a person."""
        if self.quiet or self.json:
            return
        with _without_bar():
            _console()(soft_wrap=isinstance(what, str)).print(what, style=style, markup=False, highlight=False)

    def wrote(self, *paths: Path) -> None:
        """Say which files were written."""
        for path in paths:
            held = " (estimate, lower and upper along a new first axis)" if path.suffix == ".npy" else ""
            self.say(f"wrote {path}{held}")

    def answer(self, facts: Mapping[str, object]) -> None:
        """Print the JSON object that scripts read."""
        if self.json:
            with _without_bar():
                print(json.dumps(_spelled(plain(facts)), indent=2))

    @contextmanager
    def progress(self) -> Iterator[Predicted]:
        """What is called with a stage and its share done: it moves a bar on a terminal; nested, the outer one."""
        outer = _active.get()
        if outer is not None:
            yield outer
            return
        if self.quiet or not sys.stderr.isatty():
            yield Predicted(self.say)
            return
        bar = _Bar(self.say)
        token = _active.set(bar)
        try:
            with bar.shown():
                bar("starting", 0.0)
                yield bar
        finally:
            _active.reset(token)


def _spelled(value: Json) -> Json:
    """JSON values whose texts name options of the command line."""
    if isinstance(value, dict):
        return {key: _spelled(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_spelled(one) for one in value]
    return spelling.get()(value) if isinstance(value, str) else value


@contextmanager
def _without_bar() -> Iterator[None]:
    """Take the bar off the terminal while something else is printed."""
    bar = _active.get()
    if bar is not None:
        bar.bars.stop()
    try:
        yield
    finally:
        if bar is not None:
            bar.bars.start()


class _Bar(Predicted):
    """A bar with the name of the stage, the time that has passed and the time left."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(say)
        self.began = self.stage_began = monotonic()
        self.stage, self.done, self.expected, self.ends = "", 0.0, 0.0, 0.0

    @contextmanager
    def shown(self) -> Iterator[None]:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn
        from rich.text import Text

        clock = self.clock

        class Clock(ProgressColumn):
            def render(self, task: Task) -> Text:
                return Text(clock(monotonic()))

        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=18), Clock())
        # Standard output may be a file: it is never redirected to the terminal.
        with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as self.bars:
            self.task = self.bars.add_task("", total=None)
            yield

    def predicted(self, seconds: float, needed: int, on_device: int | None = None) -> None:
        super().predicted(seconds, needed, on_device)
        self.expected = monotonic() - self.began + seconds + (COMPILING_SECONDS if compiling() else 0.0)

    def __call__(self, stage: str, share: float) -> None:
        now = monotonic()
        words, before, after = STAGES.get(stage, (stage, 0.0, 1.0))
        if stage != self.stage:
            self.stage, self.stage_began = stage, now
        done = before + (after - before) * min(share, 1.0)
        self.done = done
        passed = now - (self.began if stage in STAGES else self.stage_began)
        if stage in STAGES and done < TRUST_PREDICTION_BELOW:
            self.ends = self.began + self.expected if self.expected else 0.0
        else:
            self.ends = now + passed * (1.0 - done) / done if done > 0.0 else 0.0
        # A stage without progress yet pulses instead of showing 0 %.
        self.bars.update(self.task, description=words, total=1.0 if done > 0.0 else None, completed=done)

    def clock(self, now: float) -> str:
        """The time that has passed, and the time left where it is known; a fit may take longer than predicted."""
        left, about = self.ends - now, ""
        if self.ends and (left >= 1.0 or self.done > ALMOST_DONE):
            about = f", about {duration(left)} left" if left >= 1.0 else ", almost done"
        return f"elapsed {duration(now - self.began)}{about}"


@cache
def _console() -> type[Console]:
    from rich.console import Console
    from rich.segment import Segment

    class Careful(Console):
        """Shows labels of a file as they are written, whatever they hold."""

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
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
    """Numbers separated by commas, as `0.8,0.9`."""
    try:
        found = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        found = []
    if not found:
        raise ValueError(f"{name} is {text!r}: give numbers separated by commas, such as 0.8,0.9")
    return found
