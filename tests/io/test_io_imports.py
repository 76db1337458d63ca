"""The room of files imports nothing from above it."""

import ast
from pathlib import Path

from corten import io

ALLOWED = ("corten.io", "corten.data", "corten.engine.memory")


def imported(tree):
    """Modules of corten that are imported anywhere in a file, but for annotations."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("corten."):
            yield node.module


def test_readers_and_writers_import_nothing_from_above():
    for path in sorted(Path(io.__file__).parent.glob("*.py")):
        wrong = [name for name in imported(ast.parse(path.read_text())) if not name.startswith(ALLOWED)]
        assert not wrong, (path.name, wrong)
