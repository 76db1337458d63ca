"""`python -m benchmarks`: speed beside plain NumPy and peers, and one script per question."""

from __future__ import annotations

import argparse
import ast
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["main", "scripts"]

HERE = Path(__file__).parent
PARTS = ("__init__", "__main__", "cases", "dense", "run")  # of `speed`


def scripts() -> dict[str, str]:
    """The first sentence of every script in this folder, by its name."""
    found = {}
    for path in sorted(HERE.glob("*.py")):
        if path.stem not in PARTS:
            text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            found[path.stem] = text.splitlines()[0].partition(": `python")[0].partition(": python")[0].rstrip(".") + "."
    return found


def parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    root = argparse.ArgumentParser(
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=24),
        prog="python -m benchmarks",
        description="Measure speed and memory. Each script explains its arguments in its first lines.",
    )
    commands = root.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="command")
    text = "Passes, fits, sampling and the conformal step beside plain NumPy and peers; slower results are shown too."
    speed = commands.add_parser("speed", help=text, description=text)
    speed.add_argument("--case", action="append", metavar="NAME", help="passes, fits, sampling, conformal or peers")
    speed.add_argument("--output", type=Path, default=Path("bench-output"), metavar="FOLDER")
    speed.add_argument("--page", type=Path, metavar="FILE", help="also write the page of benchmarks")
    speed.add_argument("--quick", action="store_true", help="small sizes, to see that everything runs")
    for name, sentence in scripts().items():
        commands.add_parser(name, help=sentence.replace("%", "%%"), add_help=False)
    return root


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in scripts():
        sys.argv = [str(HERE / f"{words[0]}.py"), *words[1:]]
        runpy.run_path(sys.argv[0], run_name="__main__")
        return 0
    asked = parser().parse_args(words)
    from benchmarks.cases import Row
    from benchmarks.run import markdown, met, run_cases, write, write_page

    def tell(row: Row) -> None:
        goal = f" (asked {row.asked}: {met(row)})" if row.asked else ""
        print(f"{row.what}: {row.ratio:.3g} times {row.against}{goal} {row.note}", flush=True)

    try:
        rows = run_cases(asked.case, asked.quick, tell)
    except ValueError as problem:
        print(f"benchmarks: {problem}", file=sys.stderr)
        return 2
    paths = write(rows, asked.output)
    if asked.page is not None:
        paths.append(write_page(rows, asked.output, asked.page))
    print(markdown(rows))
    print("wrote " + ", ".join(map(str, paths)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
