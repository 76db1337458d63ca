"""The long runs behind docs/reliability.md: `make reliability`, or one part: `python tests/reliability/run.py fuzz`.

Every part leaves a JSON file in the folder of results, one for each seed; the page is written from all of them, so
parts can be run on their own and in pieces. It ends with 1 where a part found something, or the page tells of it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]  # the tests and the studies are not installed
ENVIRONMENTS = ("lowest", "newest", "wheel", "sdist")
LIBRARIES = ("numpy", "scipy", "numba", "xarray", "netCDF4", "h5py", "zarr", "pandas", "pyarrow", "hypothesis")


def run_fuzz(size: int, seed: int) -> dict[str, Any]:
    from reliability.fuzz import fuzz

    tally = fuzz(size, seed)
    return asdict(tally) | {"total": tally.total}


def run_faults(size: int, seed: int) -> dict[str, Any]:
    from reliability.faults import many_faults

    return many_faults(size, seed)


def run_load(size: int, seed: int) -> dict[str, Any]:
    from reliability.load import soak, together

    return {"together": together(100, seed), "soak": soak(size, seed)}


def run_environment(which: str) -> Callable[[int, int], dict[str, Any]]:
    from reliability.environments import demo_of, suite_with

    return lambda size, seed: suite_with(which) if which in ("lowest", "newest") else demo_of(which)


def run_properties(size: int, seed: int) -> dict[str, Any]:
    """The suite's property tests with their long profile, a file a core; each test says how many cases passed."""
    files = sorted((ROOT / "tests").glob("test_propert*.py"))
    with TemporaryDirectory() as folder, ThreadPoolExecutor(_cores()) as several:
        ended = list(several.map(lambda file: _long_properties(file, seed, Path(folder)), files))
        found = [json.loads(line) for path in Path(folder).glob("*.cases") for line in path.read_text().splitlines()]
    cases = {one["name"].rpartition("::")[2]: one["cases"] for one in found}
    failed = [said for said in ended if said]
    return {"tests": len(found), "cases": sum(cases.values()), "by_test": cases, "failed": failed}


def _long_properties(file: Path, seed: int, folder: Path) -> str:
    """What a file of properties says if it fails; nothing if it passes."""
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=long",
        f"--hypothesis-seed={seed}", str(file),
    ]  # fmt: skip
    given = os.environ | {"CORTEN_CASES": str(folder / f"{file.stem}.cases")}
    done = subprocess.run(command, cwd=ROOT, env=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return f"{file.name}: {done.stdout[-3000:]}" if done.returncode != 0 else ""


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


PARTS: dict[str, tuple[Callable[[int, int], dict[str, Any]], int]] = {
    "properties": (run_properties, 0),
    "fuzz": (run_fuzz, 100_000),
    "faults": (run_faults, 40),
    "load": (run_load, 10_000),
    **{which: (run_environment(which), 0) for which in ENVIRONMENTS},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"{', '.join(PARTS)}, page; without any, all of them")
    parser.add_argument("--size", type=int, default=None, help="files to fuzz, faults of each kind, fits of the soak")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=ROOT / "reliability-output")
    asked = parser.parse_args()
    parts = asked.parts or [*PARTS, "page"]
    if unknown := set(parts) - {*PARTS, "page"}:
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    asked.results.mkdir(parents=True, exist_ok=True)
    from reliability.page import problems, write_page

    failed = False
    for name in parts:
        if name == "page":
            failed |= write_page(asked.results, ROOT / "docs" / "reliability.md")
            continue
        work, size = PARTS[name]
        began = datetime.now(UTC)
        found = work(asked.size or size, asked.seed)
        about = {"asked": asked.size or size, "seed": asked.seed, "date": f"{began:%Y-%m-%d %H:%M} UTC"}
        about |= {"seconds": (datetime.now(UTC) - began).total_seconds(), "versions": versions()}
        (asked.results / f"{name}-{asked.seed}.json").write_text(json.dumps(about | found, indent=1) + "\n")
        print(name, json.dumps(found)[:2000])
        for problem in problems(name, about | found):
            failed = True
            print(f"{name}: {problem}", file=sys.stderr)
    sys.exit(failed)


def versions() -> str:
    import corten

    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    own = f"corten {corten.__version__}" + (f" ({commit.stdout.strip()})" if commit.returncode == 0 else "")
    known = " ".join(f"{name} {version(name)}" for name in LIBRARIES)
    return f"{own}, Python {platform.python_version()}, {known}, {platform.system()} {platform.machine()}"


if __name__ == "__main__":
    main()
