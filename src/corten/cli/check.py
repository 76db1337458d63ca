"""`corten check`: what a file holds, what its gaps look like, and what completing it will take; nothing is fitted."""

from __future__ import annotations

import shlex
import warnings
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated

import numpy as np

from corten.cli.complete import too_large
from corten.cli.options import DataOptions, with_options
from corten.cli.terminal import READABLE_FORMATS, Terminal, argument
from corten.data.axes import Axis
from corten.data.never_observed import CODE, is_mask_name
from corten.data.observed import ObservedTensor
from corten.data.printable import printable
from corten.io.files import suffix_of
from corten.io.formats import contents
from corten.io.registry import WRITABLE
from corten.results.progress import compiling, cost

EVEN_STEPS = 0.01  # relative difference between the steps of an axis that counts as even
MAX_VARIABLES = 12  # that are checked if none is named
MAX_NAMES = 12  # of the contents of a file that are listed
HIDING = {
    "gaps": "gaps: observed entries are hidden in pseudo-gaps, shaped like the real gaps",
    "random": "random: observed entries are hidden at random",
    "cross": "cross: every observed entry is hidden once, in folds, because there are few",
}


@with_options
def check(
    file: Annotated[Path, argument("FILE", f"Data with gaps: {READABLE_FORMATS}.")],
    data: DataOptions,
    terminal: Terminal,
) -> None:
    """Describe the gaps of a file, and predict what filling them takes. Nothing is fitted or written.

    Lists variables, share and shape of the gaps, places never observed,
    suspicious values, uneven axes, predicted time and memory, and the command to run.

    Example: [bold]corten check data.nc[/bold]
    """
    with terminal.progress() as move:
        move("reading", 0.0)
        shapes = contents(file, careful=True)
        sized = [f"{name} ({' x '.join(map(str, shape))})" if shape else name for name, shape in shapes.items()]
        more = f" and {len(sized) - MAX_NAMES} more" if len(sized) > MAX_NAMES else ""
        terminal.say(f"{file}: {', '.join(sized[:MAX_NAMES])}{more}")
        found = {}
        for name in _variables(data, shapes):
            described = replace(data, variable=name)
            if too_large(file, name, None):
                facts = {"note": "does not fit in memory: corten complete works from disk and writes .zarr"}
                facts["run"] = _command(file, name, described, suffix=".zarr")
            else:
                facts = _facts(file, described)
            known = next((key for key, shape in shapes.items() if len(shape) > 1), file.name)
            found[name or facts.pop("variable") or known] = facts
    for name, facts in found.items():
        _show(terminal, name, facts)
    terminal.answer({"file": str(file), "contents": shapes, "variables": found})


def _variables(data: DataOptions, shapes: dict[str, tuple[int, ...]]) -> list[str | None]:
    """The variables to check: the one named, all that could be completed, or None where the reader has to choose."""
    if data.variable is not None:
        return [data.variable]
    tensors = [name for name, shape in shapes.items() if len(shape) > 1 and not is_mask_name(name)]
    flags = [(data.where or "").removeprefix("!"), (data.quality or "").partition("=")[0]]
    tensors = [name for name in tensors if name not in flags]
    return list(tensors[:MAX_VARIABLES]) if len(tensors) > 1 else [None]


def _facts(file: Path, data: DataOptions) -> dict[str, str]:
    """What is found in one variable; a variable that cannot be completed has a note that says why."""
    from corten.calibration.auto import choose_calibration
    from corten.options import predicted_bytes, predicted_seconds

    try:
        loaded = data.read(file)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # suspected values are shown below
            observed = data.tensor(loaded)
    except (ValueError, TypeError) as problem:
        return {"variable": data.variable or "", "note": " ".join(str(problem).split())}
    size, entries = int(np.count_nonzero(observed.inside)), observed.n_missing
    values = observed.values[observed.mask]
    facts: dict[str, str] = {
        "variable": loaded.variable,
        "tensor": ", ".join(f"{axis.name} {axis.length}" for axis in observed.axes),
        "missing": f"{entries:,} of {size:,} entries ({entries / size:.1%})",
        "values": f"{values.min():.6g} to {values.max():.6g} {observed.attrs.get('units', '')}".rstrip(),
    }
    if entries:
        facts["gaps"] = _gaps(observed)
    for one in observed.choices:
        if one.code == CODE:
            facts["never observed"] = one.because
        elif one.taken == "suspected":
            facts["suspicious"] = one.because
        else:
            facts[one.what] = f"{one.taken}: {one.because}"
    facts["axes"] = "; ".join(_axis(axis) for axis in observed.axes)
    facts |= {f"note {k}" if k > 1 else "note": note for k, note in enumerate(loaded.notes, 1)}
    if not entries:
        return facts | {"note": "nothing is missing"}
    calibration, chosen = choose_calibration(observed, 0)
    seconds = predicted_seconds(calibration, observed.axes, entries)
    needed = predicted_bytes(calibration, observed.axes, entries)
    facts["calibration"] = HIDING.get(chosen[0].taken, chosen[0].taken)
    facts["predicted"] = cost(seconds, needed) + compiling()
    facts["run"] = _command(file, loaded.variable, data)
    return facts


def _gaps(observed: ObservedTensor) -> str:
    """The number of connected gaps, and the longest run of missing entries along each ordered axis."""
    from scipy import ndimage

    runs = []
    for k, axis in enumerate(observed.axes):
        if axis.kind != "unordered":
            line = np.ones([3 if j == k else 1 for j in range(observed.missing.ndim)])
            lines = ndimage.label(observed.missing, np.pad(line, [(int(n == 1),) * 2 for n in line.shape]))[0]
            runs.append(f"{axis.name} {np.bincount(lines.ravel())[1:].max()}")
    count = ndimage.label(observed.missing)[1]
    return f"{count:,} connected" + (f"; longest along {', '.join(runs)}" if runs else "")


def _axis(axis: Axis) -> str:
    """An axis in words: ordered or not, periodic, even or uneven steps."""
    kind = f"{axis.name} {axis.kind}{', periodic' if axis.periodic else ''}"
    given = axis.coordinates
    if given is None:
        return f"{kind}, without labels"
    if axis.kind == "unordered" or given.dtype.kind not in "iufM" or axis.length < 3:
        return kind
    steps = np.abs(np.diff(given))
    words = [_step(one, axis.units) for one in (steps.min(), steps.max())]
    numbers = steps.astype(np.float64)
    if np.ptp(numbers) <= EVEN_STEPS * numbers.mean():
        return f"{kind}, every {words[0]}"
    return f"{kind}, uneven: steps of {words[0]} to {words[1]}"


def _step(step: np.timedelta64 | float, units: str | None) -> str:
    if isinstance(step, np.timedelta64):
        seconds = float(step / np.timedelta64(1, "s"))
        for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
            if seconds >= length:
                return f"{seconds / length:.4g} {unit}"
        return f"{seconds:.4g} s"
    return f"{float(step):.4g}{'' if units is None else f' {units}'}"


def _command(file: Path, variable: str | None, data: DataOptions, suffix: str | None = None) -> str:
    """The command that completes this variable, with the options that were given."""
    own = suffix_of(file)
    suffix = suffix or (own if own in WRITABLE else ".nc")
    words = ["corten", "complete", str(file)]
    words += [] if data.variable is None else ["-v", str(variable)]
    for one in fields(data):
        given, option = getattr(data, one.name), f"--{one.name.replace('_', '-')}"
        if given is True:
            words.append(option)
        elif one.name != "variable" and given != one.default:
            words += [part for text in (given if isinstance(given, list) else [given]) for part in (option, text)]
    stem = file.name[: len(file.name) - len(own)] if own else file.stem
    return shlex.join([*words, "-o", f"{stem}-filled{suffix}"])


def _show(terminal: Terminal, name: str, facts: dict[str, str]) -> None:
    """One variable as a short table."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for left, right in facts.items():
        if left != "variable":
            table.add_row(Text("note" if left.startswith("note ") else left), Text(printable(str(right))))
    terminal.say(Text(f"\n{name}", style="bold"))
    terminal.say(table)
