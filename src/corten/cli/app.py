"""The `corten` program: its commands, and how errors and interrupts end it."""

from __future__ import annotations

import inspect
import io
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from corten import __version__
from corten.cli.audit import audit
from corten.cli.check import check
from corten.cli.complete import complete
from corten.cli.daily import fill, update, verify
from corten.cli.demo import demo
from corten.cli.evaluate import evaluate
from corten.cli.info import info
from corten.cli.interrupt import end_at_once, is_ending, is_told_to_end, watch_for_interrupt
from corten.cli.simulate import simulate
from corten.cli.spelling import in_options
from corten.cli.terminal import remember
from corten.data.printable import printable, spelling

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_EXPECTED = (ValueError, TypeError, OSError, ImportError, MemoryError)
"""What a user's input can cause; anything else is a fault of corten and shows where it happened."""


class _PlainTypes:
    """Help without the type of flags, which take no value, and of arguments, whose name says what they are."""

    def get_params(self, ctx: Any) -> list[Any]:  # of click, which typer has inside
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for one in found:
            if getattr(one, "is_flag", False):
                one.metavar = ""
            elif isinstance(one, TyperArgument):
                one.display_type_rich = lambda ctx: None  # type: ignore[method-assign]
        return found


class _Command(_PlainTypes, TyperCommand):
    """A command of the program."""


class _Group(_PlainTypes, TyperGroup):
    """Commands whose errors are one clear line and exit code 2; `--debug`, anywhere, shows where they arose."""

    alone = False  # whether corten may end the process

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        remember(args)
        return super().parse_args(ctx, sorted(args, key=lambda one: one != "--debug"))

    def invoke(self, ctx: Any) -> Any:
        before = spelling.set(in_options)
        try:
            return super().invoke(ctx)
        except _EXPECTED as problem:
            if is_ending():
                end_at_once()
            if ctx.params.get("debug"):
                raise
            message = " ".join(str(problem).split()) or type(problem).__name__
            print(f"corten: {printable(message)}", file=sys.stderr)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            if _Group.alone:
                end_at_once()
            raise
        finally:
            spelling.reset(before)


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="First steps: [bold]corten demo[/bold], then [bold]corten check data.nc[/bold] and "
    "[bold]corten complete data.nc -o filled.nc[/bold]",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"corten {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error arose.")] = False,
) -> None:
    """Fill the gaps of a tensor and give every filled entry a prediction interval."""


_PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Fill": (complete, fill, update),
    "Check": (check, audit, evaluate, verify),
    "Try": (demo, simulate, info),
}


def _help(command: Callable[..., None]) -> str:
    """The docstring with one line per paragraph: lines broken in the source would stay broken in the help."""
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    return "\n\n".join(" ".join(one.split()) for one in paragraphs)


for _panel, _commands in _PANELS.items():
    for _command in _commands:
        app.command(rich_help_panel=_panel, cls=_Command, help=_help(_command))(_command)


class _ClosedPipeIgnored(io.FileIO):
    """A stream that ignores a closed pipe (`corten ... 2>&1 | head`): the work is still done."""

    def write(self, data: ReadableBuffer) -> int:
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return memoryview(data).nbytes


def _tolerant(stream: TextIO | None) -> TextIO:
    """The same stream without errors of closed pipes; a closed stream (`2>&-`) shows nothing."""
    if stream is None:
        return open(os.devnull, "w")
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    same = {name: getattr(stream, name) for name in ("encoding", "errors", "line_buffering")}
    return io.TextIOWrapper(io.BufferedWriter(_ClosedPipeIgnored(stream.fileno(), "w", closefd=False)), **same)


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning as one line; where it arose in the code does not help a user of the program."""
    print(f"corten: {printable(str(message))}", file=sys.stderr)


def main() -> None:
    """Run the program."""
    _Group.alone = True
    warnings.showwarning = _warn
    sys.stdout, sys.stderr = _tolerant(sys.stdout), _tolerant(sys.stderr)
    try:
        watch_for_interrupt()
        app(prog_name="corten")
    except (SystemExit, KeyboardInterrupt):
        if is_told_to_end():  # libraries may turn an interrupt into another exit
            end_at_once()
        raise
    except Exception:  # the message may come from a file: control characters are not shown as they are
        print(printable(traceback.format_exc()), end="", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
