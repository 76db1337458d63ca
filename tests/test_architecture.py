"""Imports point downwards: no module imports from a room above its own, and no modules import each other in a circle.
Calls are readable: beyond five, arguments are passed by name.

Imports inside functions count. Imports under `if TYPE_CHECKING` do not: they are names for the type checker.
"""

import ast
import re
from collections import Counter
from pathlib import Path

import corten

SOURCE = Path(corten.__file__).parent
ROOMS = (
    "cli", "xarray", "sklearn", "functions", "large", "completer", "checkpoint", "options", "results", "report",
    "evidence", "calibration", "simulate", "completion", "propensity", "io", "conformal", "data", "engine", "lowrank",
)  # fmt: skip
"""From top to bottom. `__init__` only says where names are, `__main__` starts the program."""


def modules():
    """Every module's name and its syntax tree, without what is for the type checker alone."""
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if parts[-1] != "__main__" and parts != ("__init__",):
            tree = ast.parse(path.read_text())
            for node in ast.walk(tree):
                if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                    node.body = [ast.Pass()]
            yield ".".join(part for part in parts if part != "__init__"), tree


def imports(tree, names):
    """Modules of corten that a tree imports anywhere, as names below corten."""
    for node in ast.walk(tree):
        found = []
        if isinstance(node, ast.Import):
            found = [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found = [f"{node.module}.{one.name}" for one in node.names]
        for one in found:
            if one.startswith("corten."):
                name = one.removeprefix("corten.")
                while name and name not in names:
                    name = name.rpartition(".")[0]
                if name:
                    yield name


def graph():
    found = dict(modules())
    return {name: set(imports(tree, found)) - {name} for name, tree in found.items()}


def test_no_module_imports_from_a_room_above_it():
    upwards = [
        f"{name} imports {other}"
        for name, others in graph().items()
        for other in sorted(others)
        if ROOMS.index(other.split(".")[0]) < ROOMS.index(name.split(".")[0])
    ]
    assert not upwards, "\n".join(upwards)


def test_no_modules_import_each_other_in_a_circle():
    edges, done = graph(), set()

    def visit(name, path):
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name not in done:
            for other in sorted(edges[name]):
                visit(other, [*path, name])
            done.add(name)

    for name in edges:
        visit(name, [])


PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"


def named_in_rooms(page):
    """Paths of the files that the lists of rooms name; a heading such as `cli/: the command line` gives the folder."""
    rooms = page.split("## Rooms, from top to bottom")[1].split("\n## ")[0]
    for section in rooms.split("\n### ")[1:]:
        folder = re.match(r"\w+/|", section)[0]
        yield from (folder + name for name in re.findall(r"`(\w+\.py)`", section))


def test_the_page_names_every_file_once_in_its_room():
    named = Counter(named_in_rooms(PAGE.read_text()))
    files = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("[!_]*.py")}
    assert {name: number for name, number in named.items() if number > 1} == {}
    assert set(named) == files


def test_files_elsewhere_on_the_page_exist():
    root = SOURCE.parents[1]
    paths = re.findall(r"`((?:\w+/)+\w+\.py)`", PAGE.read_text())
    assert paths and [one for one in paths if not (SOURCE / one).exists() and not (root / one).exists()] == []


MAX_POSITIONAL = 5
KERNELS = (
    "engine.gibbs", "engine.ising_rows", "engine.jax_fused", "engine.jax_passes", "engine.jax_slab", "engine.layout",
    "engine.likelihood", "engine.passes", "engine.residuals", "conformal.kernels",
    "conformal.quantile", "conformal.sketch", "completion.covariance_likelihood",
)  # fmt: skip
"""Their calls are of compiled functions: Numba compiles no keyword-only arguments, JAX numbers static arguments."""


def test_no_call_passes_many_arguments_by_position():
    """Of functions, methods and classes that corten defines, by name: a call of another library's is not counted."""
    found = dict(modules())
    own = {
        node.name
        for tree in found.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    long = [
        f"{name}:{node.lineno} passes {len(node.args)} arguments by position"
        for name, tree in found.items()
        if name not in KERNELS
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and len(node.args) > MAX_POSITIONAL
        if getattr(node.func, "id", getattr(node.func, "attr", None)) in own
    ]
    assert not long, "\n".join(long)
