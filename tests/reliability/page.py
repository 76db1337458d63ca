"""Writes docs/reliability.md from the results of the parts, as they are: what was not reached is said."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

__all__ = ["problems", "write_page"]

GOAL_CASES, GOAL_FILES = 10_000, 100_000
HOW = {"threads": "from 8 threads", "fork": "from 4 forked processes", "spawn": "from 4 fresh processes"}
HEAD = """\
# Reliability: what was tried to break it

Written by `make reliability` (tests/reliability/run.py) from its last runs; short versions of all parts are in
`make test`. A test of the list fails when what it tells about stops being true.

"""
MENDED = """\
## What was found and mended

Runs that found something were repeated with the same seeds after it was mended; the table counts the repetitions.

- A Zarr chunk that lies about its size made Blosc read out of bounds and, now and then, crash the process. Reading such
  files twice, first in a process of its own, did not always help: what crashes once may pass once.
- Axes of a Zarr store called `None` or `true` ended in a TypeError that named no file (two of 104,000 files).
- Damaged `.npy` files ended `corten complete` in a traceback before they were read, and files met by a completion from
  disk or by `corten evaluate` named no file: fuzzed files now come by these doors too.
- A file written to during a completion from disk gave a mixture of old and new, and one cut short ended the process by
  a signal. A long thin tensor in one chunk made the plan for a completion from disk take hours.
- Many arrays of a saved fit that each kept to the limit of memory, text of a Parquet table that is stored once and
  repeats, an array called `coverage` in a file of results, and one long label among many broke that limit.
- Diagnostics called all levels infinite where the weights left were smaller than any double, and cutoffs were finite.
- A pseudo-gap round whose training values are all alike counted its errors in the unit of the data where a transform is
  used; a Gaussian process divided by a curvature too small for single precision; Tucker fills of values near 1e-200
  were wrong without a word (sizes beyond 1e100 and 1e-100 are refused now).
- On constant data a descent divided by a change of the gradient that was too small to be squared (ZeroDivisionError).
- A disk that is full just when a NetCDF file is closed was a RuntimeError of the library that named no file.
- SIGTERM left the hidden, half-written store of `corten complete --memory` behind.
- A signal in the very moment in which the program began to listen for it ended in a traceback.
- Finished cells of a study that a disk had damaged were kept: cut ones broke the report, flipped bits changed numbers.
  Its workers went on when it was killed.
- A fit of the reversed tensor may come to rest in another valley of the likelihood: trains are rounded from one end to
  the other. The property now begins where a fit has come to rest.
"""
LIMITS = """\
## What is guaranteed, and what is not

- A file that corten cannot read is refused by a `ValueError` (or `OSError`) that names it. No pickle in
  a file is opened, no path out of it is followed, and declared sizes are checked before anything is allocated. What
  does not declare its size (text, packed tables) is counted while it is read.
- A file that somebody writes to while it is read is refused: noticed by the time of its last change and its size, so
  not where both stay as they were. From disk a file is looked at before every run of planes and before the output gets
  its name; of a Zarr folder what stands directly in it before every run, and every file of it at the end.
- HDF5, NetCDF, Zarr and Parquet are read by libraries in C, which can crash or hang on damaged files. `complete`,
  `audit` and `evaluate` of the program read such files in a process of its own (Linux), and only what was read comes
  back; in Python that is `corten.io.read(path, careful=True)`. Files that crash or hang a library in our own process,
  and are refused by this alone, are counted above as *contained*. Tensors too large for memory are opened in a process
  of its own first, but their values are read in the program's, after the same checks of what the file declares.
- Blosc, which packs most Zarr stores, believes the sizes in a chunk and reads out of bounds where they lie: chunks are
  looked at before it sees them, and Blosc inside of shards or below other codecs is refused.
- Outputs appear whole or not at all: written under a temporary name, flushed to the disk, renamed. What a killed
  program left under a temporary name goes when the file is written again.
- `corten complete --checkpoint FOLDER` keeps every finished round; run the same command again to resume: it gives
  the same bits. Choosing the settings before the first round, the final fill and the propensity model are done again.
  Without the option it starts clean.
- Ctrl-C ends the program with code 130, SIGTERM with 143 and a closed terminal with 129: worker processes end, and
  nothing is left under a temporary name. A compiled call that holds Python's lock delays it until the call returns, and
  in the first hundredths of a second, while Python itself starts, Ctrl-C shows Python's own traceback.
- Stored cells of a study carry a checksum. A damaged one is named and run again; workers end with their program.
- Every output says how it was made (seed, settings, versions), but `.csv` and `.npy`, which have no place for it.
- Too little memory is predicted from the number of entries and rounds, before starting; it is no measurement.
"""


ENVIRONMENTS = {
    "lowest": "the default suite with the lowest versions allowed",
    "newest": "the default suite with the newest versions there are",
    "wheel": "the wheel, built and installed in an empty environment, runs the demo",
    "sdist": "the source distribution likewise",
}


def write_page(results: Path, page: Path) -> bool:
    """Write the page; whether anything went wrong."""
    parts = {name: _found(results, name) for name in ("properties", "fuzz", "faults", "load", *ENVIRONMENTS)}
    rows: list[tuple[str, str, str]] = []
    notes = [note for name, found in parts.items() for one in found for note in problems(name, one)]
    if parts["properties"]:
        cases = sum(one["cases"] for one in parts["properties"])
        tests = sum(one["tests"] for one in parts["properties"])
        rows.append(("generated cases", f"{cases:,} of {tests} properties", _goal(cases, GOAL_CASES)))
    tried: dict[str, int] = {}
    for one in parts["fuzz"]:
        for kind, count in one["tried"].items():
            tried[kind] = tried.get(kind, 0) + count
    if tried:
        total = sum(tried.values())
        read, refused = (sum(one[what] for one in parts["fuzz"]) for what in ("read", "refused"))
        bad = sum(len(one[what]) for one in parts["fuzz"] for what in ("crashed", "hung", "wrong"))
        held = sum(len(one["contained"]) for one in parts["fuzz"])
        said = f"{read:,} read, {refused:,} refused by name, {held} contained, **{bad} crashes, hangs or wrong errors**"
        rows.append(("bad files", f"{total:,}", f"{said}; {_goal(total, GOAL_FILES)}"))
    for one in parts["faults"]:
        for name, found in one["faults"].items():
            said = f"{found['struck']} struck, {found['survived']} survived"
            said += f"; {found['missed']} came too late and were drawn again" if found["missed"] else ""
            rows.append((name, f"{found['struck']}", found.get("not_here", said)))
        slowest = f"{one['slowest_interrupt']:.2f} s, of which the machine was busy elsewhere for {one['stall']:.2f} s"
        allowed = f"{one['within']:.0f} s beyond that is allowed"
        rows.append(("slowest end after Ctrl-C or SIGTERM", "", f"{slowest}; {allowed}"))
    for one in parts["load"]:
        rows += _load(one)
    for name, what in ENVIRONMENTS.items():
        for one in parts[name]:
            rows.append((what, "1", f"passed: {_plain(one['said'])}" if one["passed"] else "**failed**, see below"))
    absent = [name for name, found in parts.items() if not found]
    text = HEAD + "| tried | how often | what happened |\n|---|---|---|\n"
    text += "".join(f"| {a} | {b} | {c} |\n" for a, b, c in rows)
    if absent:
        text += f"\nNot run for this page: {', '.join(absent)}.\n"
    if tried:
        listed = ", ".join(f"{kind} {count:,}" for kind, count in sorted(tried.items()))
        text += f"\nBad files by format: {listed}.\n"
    text += "\n## What went wrong\n\n" + ("".join(f"- {_plain(note)}\n" for note in notes) or "Nothing.\n")
    text += f"\n{MENDED}\n{LIMITS}\n## The runs\n\n"
    text += "".join(_about(name, one) for name in parts for one in parts[name])
    page.write_text(text, encoding="utf-8")
    return bool(notes)


def problems(name: str, one: dict[str, Any]) -> list[str]:
    """What went wrong in one run of a part."""
    if name == "properties":
        return [f"properties, seed {one['seed']}: {_end(case)}" for case in one["failed"]]
    if name == "fuzz":
        return [f"{what}: {case}" for what in ("crashed", "hung", "wrong") for case in one[what]]
    if name == "faults":
        return [f"{fault}: {_end(case)}" for fault, found in one["faults"].items() for case in found["failed"]]
    if name == "load":
        return _load_failures(one)
    return [] if one["passed"] else [f"{ENVIRONMENTS[name]}: {_end(one['said'])}"]


def _found(results: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(results.glob(f"{name}-*.json"))]


def _goal(reached: int, goal: int) -> str:
    return f"the goal of {goal:,} is reached" if reached >= goal else f"**the goal of {goal:,} is not reached**"


def _load(one: dict[str, Any]) -> list[tuple[str, str, str]]:
    rows = []
    if one.get("together"):
        both = one["together"]
        for key, how in HOW.items():
            same = f"{both[f'{key}_equal']} with the bits of the serial answer"
            rows.append((f"`complete` {how} at once", f"{both['calls']}", same))
    if one.get("soak"):
        soak = one["soak"]
        start, middle, end, bound = (f"{soak[key] / 2**20:.1f}" for key in ("start", "middle", "end", "bound"))
        said = (
            f"memory: {start} MiB when warm, {middle} in the middle, {end} at the end (at most {bound} more allowed); "
        )
        said += f"{soak['slope']:.0f} ± {soak['error']:.0f} bytes a fit over the second half"
        rows.append(("small fits one after another", f"{soak['fits']:,}", said))
    return rows


def _load_failures(one: dict[str, Any]) -> list[str]:
    both, soak = one["together"], one["soak"]
    notes = [
        f"{both['calls'] - both[f'{how}_equal']} answers of {how} differ"
        for how in HOW
        if both["calls"] != both[f"{how}_equal"]
    ]
    return notes + ([f"memory grew by {soak['grown']} bytes"] if soak["grown"] > soak["bound"] else [])


def _about(name: str, one: dict[str, Any]) -> str:
    return f"- {name}: seed {one['seed']}, {one['date']}, {one['seconds'] / 60:.0f} min; {one['versions']}\n"


def _end(said: str, lines: int = 4) -> str:
    """The last lines of what a program said: there it says why it ended."""
    last = " / ".join([_plain(line) for line in said.splitlines() if line.strip()][-lines:])
    return last if len(last) <= 260 else f"... {last[-260:].partition(' ')[2]}"


def _plain(note: str) -> str:
    """One short line, which a table can hold; folders of the machine are nobody's business."""
    here = re.sub(r"(?<![\w.])/(?:[^\s/'\"()]+/)+", ".../", " ".join(note.split()))
    return here.replace("|", "\\|").replace("<", "&lt;")[:400]
