"""What an installed corten contains: the package, without studies, benchmarks and tests."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

import corten

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = {"studies", "benchmarks", "bench", "tests"}


def wheel_files() -> list[Path]:
    """The files that the build puts into the wheel, relative to the folder that holds the package."""
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (package,) = about["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    folder = ROOT / package
    return [path.relative_to(folder.parent) for path in folder.rglob("*") if path.is_file()]


def test_the_wheel_holds_the_package_and_no_study_or_benchmark():
    files = wheel_files()
    assert Path("corten/__init__.py") in files and Path("corten/completer.py") in files
    assert [str(path) for path in files if OUTSIDE & {*path.parts, path.stem, path.stem.partition("_")[0]}] == []


def test_the_package_imports_nothing_from_outside_it():
    for path in (file for file in wheel_files() if file.suffix == ".py"):
        for node in ast.walk(ast.parse((ROOT / "src" / path).read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
            assert not OUTSIDE & {name.partition(".")[0] for name in names}, f"{path} imports {names}"


def test_the_source_archive_holds_studies_and_benchmarks():
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = about["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert {"src", "tests", "studies", "benchmarks"} <= set(included)
    assert [name for name in included if not (ROOT / name).exists()] == []


def test_the_conda_recipe_and_the_citation_are_those_of_this_version():
    yaml = pytest.importorskip("yaml", reason="needs PyYAML: pip install pyyaml")
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert about["version"] == recipe["context"]["version"] == citation["version"] == corten.__version__
    conda_names = {"netCDF4": "netcdf4", "matplotlib": "matplotlib-base"}
    wanted = {f"python {about['requires-python']}"}
    for one in about["dependencies"]:
        name, version = re.fullmatch(r"([\w-]+)(.*)", one).groups()
        wanted.add(f"{conda_names.get(name, name)} {version}")
    assert set(recipe["requirements"]["run"]) == wanted
    (script,) = about["scripts"].items()
    assert recipe["build"]["python"]["entry_points"] == [" = ".join(script)]
    names = re.findall(r"\$\{\{ *(\w+) *\}\}", (ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
    assert names and set(names) <= set(recipe["context"])
    assert (ROOT / recipe["about"]["license_file"]).exists() and recipe["about"]["license"] == about["license"]
    extras = [one for extra in about["optional-dependencies"].values() for one in extra]
    optional = {re.sub(r"([<>=])", r" \1", one, count=1) for one in extras}
    assert set(recipe["requirements"]["run_constraints"]) <= optional


def test_extras_are_named_after_purposes():
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"files", "geo", "gpu", "cluster", "sklearn", "peers", "docs", "test"} == set(about["optional-dependencies"])
