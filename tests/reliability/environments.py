"""Environments other than the pinned one: the lowest and the newest versions allowed, and a stranger's empty one.

Everything happens in a temporary folder; the package is always the built one, never the source tree.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["demo_of", "suite_with"]

ROOT = Path(__file__).parents[2]
SHOWN = ("numpy", "scipy", "numba", "scikit-learn", "xarray", "pandas", "h5py", "netCDF4", "zarr", "pyarrow", "typer")
DEMO = ("demo.png", "filled.nc")
# Old releases with new libraries below them warn of what is deprecated: only there warnings are not errors.
LENIENT = {"lowest": ["-W", "default"], "newest": []}


class Failed(Exception):
    """A step that did not work, with the end of what it said."""


def run(*command: object, folder: Path) -> str:
    """What a command says; it must end well, and sees nothing of the environment this program runs in."""
    own = ("PYTHON", "VIRTUAL_ENV", "CORTEN")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    done = subprocess.run(
        [str(one) for one in command], cwd=folder, env=kept, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, command))[:200]}: {done.stdout[-3000:]}")
    return done.stdout


def empty(folder: Path, name: str) -> Path:
    """A new environment; its interpreter."""
    run(sys.executable, "-m", "venv", folder / name, folder=folder)
    return folder / name / "bin" / "python"


def tree(folder: Path) -> Path:
    """The project as it was last committed, in a place of its own; the tree itself where there is no git."""
    if not (ROOT / ".git").exists():
        return ROOT
    (folder / "tree").mkdir()
    run("git", "-C", ROOT, "archive", "--output", folder / "tree.tar", "HEAD", folder=folder)
    run("tar", "-xf", folder / "tree.tar", "-C", folder / "tree", folder=folder)
    return folder / "tree"


def built(folder: Path, source: Path, what: str) -> Path:
    """The wheel or the sdist, built in isolation."""
    tool = empty(folder, "build")
    run(tool, "-m", "pip", "install", "--quiet", "build", folder=folder)
    run(tool, "-m", "build", f"--{what}", "--outdir", folder / "dist", source, folder=folder)
    (package,) = (folder / "dist").iterdir()
    return package


def versions(python: Path, folder: Path) -> str:
    code = f"from importlib.metadata import version as v; print(' '.join(f'{{n}} {{v(n)}}' for n in {SHOWN}))"
    return run(python, "-c", code, folder=folder).strip()


def suite_with(which: str) -> dict[str, Any]:
    """The default suite against the wheel, with the lowest or the newest versions that pyproject.toml allows."""
    with tempfile.TemporaryDirectory(prefix="corten-environment-") as name:
        folder = Path(name)
        try:
            source = tree(folder)
            package, python = built(folder, source, "wheel"), empty(folder, which)
            wanted = f"corten[test,files] @ {package.as_uri()}"
            if which == "lowest":
                run(python, "-m", "pip", "install", "--quiet", "uv", folder=folder)
                uv = (python.parent / "uv", "pip", "install", "--quiet", "--python", python)
                # The lowest of what pyproject.toml names: asked for by way of the wheel, they would not be direct.
                asked = ("-r", source / "pyproject.toml", "--extra", "test", "--extra", "files")
                run(*uv, "--resolution", "lowest-direct", *asked, folder=folder)
                run(*uv, "--no-deps", package, folder=folder)
            else:
                run(python, "-m", "pip", "install", "--quiet", wanted, folder=folder)
            about = versions(python, folder)
            pytest = (python, "-m", "pytest", "-c", source / "pyproject.toml", "-p", "no:cacheprovider", "--color=no")
            said = run(*pytest, "-m", "not slow", *LENIENT[which], source / "tests", folder=folder)
        except Failed as problem:
            return {"passed": False, "said": str(problem)}
    return {"passed": True, "said": said.strip().splitlines()[-1], "packages": about}


def demo_of(what: str) -> dict[str, Any]:
    """The wheel or the sdist, installed without extras where nothing else is, runs the demo."""
    with tempfile.TemporaryDirectory(prefix="corten-environment-") as name:
        folder = Path(name)
        try:
            package, python = built(folder, tree(folder), what), empty(folder, "clean")
            run(python, "-m", "pip", "install", "--quiet", package, folder=folder)
            where = run(python, "-c", "import corten; print(corten.__file__)", folder=folder).strip()
            if not Path(where).resolve().is_relative_to(folder.resolve()):
                raise Failed(f"not the installed package was loaded, but {where}")
            run(python.parent / "corten", "demo", "--output", folder / "demo", folder=folder)
            made = sorted(path.name for path in (folder / "demo").iterdir())
        except Failed as problem:
            return {"passed": False, "said": str(problem)}
        missing = [one for one in DEMO if one not in made]
        return {"passed": not missing, "said": f"{package.name}: the demo wrote {', '.join(made)}"}
