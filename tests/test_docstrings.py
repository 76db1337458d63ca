"""The examples in docstrings run, and give what they say."""

import doctest
import importlib
from pathlib import Path

import pytest

import corten

SOURCE = Path(corten.__file__).parent
MODULES = [path for path in sorted(SOURCE.rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_the_examples_of_a_module_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
    found = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert found.attempted > 0 or "SKIP" in path.read_text(encoding="utf-8")
    assert found.failed == 0, f"{found.failed} of {found.attempted} examples fail; see the output above"
