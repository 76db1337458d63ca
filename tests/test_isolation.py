"""The watch of `conftest.py` notices a test that writes where it should not, and counts cases."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

CARELESS = """
import os
from pathlib import Path
from hypothesis import given, strategies as st

def test_relative():
    Path("left.txt").write_text("x")

def test_absolute():
    Path(os.environ["OUTSIDE"], "left.txt").write_text("x")

def test_folder():
    Path(os.environ["OUTSIDE"], "folder").mkdir()

def test_moved(tmp_path):
    (tmp_path / "a").write_text("x")
    os.replace(tmp_path / "a", Path(os.environ["OUTSIDE"], "a"))

def test_good(tmp_path):
    (tmp_path / "a").write_text("x")

@given(st.integers(0, 10**6))
def test_property(n):
    assert n >= 0
"""


def test_writing_elsewhere_fails_and_cases_are_counted(tmp_path: Path) -> None:
    for name in ("tmp", "outside", "suite"):
        (tmp_path / name).mkdir()
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path / "suite")
    (tmp_path / "suite" / "test_careless.py").write_text(CARELESS)
    cases = tmp_path / "cases.jsonl"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path / "suite")],
        env={
            **os.environ,
            "TMPDIR": str(tmp_path / "tmp"),
            "OUTSIDE": str(tmp_path / "outside"),
            "CORTEN_CASES": str(cases),
            "CORTEN_HYPOTHESIS": "short",
        },
        cwd=tmp_path / "suite",
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert "6 passed, 4 errors" in done.stdout, done.stdout
    assert "the test wrote left.txt where it was started" in done.stdout
    for event, name in (("open", "left.txt"), ("os.mkdir", "folder"), ("os.rename", "a")):
        assert f"outside its temporary folder: {event} {tmp_path}/outside/{name}" in done.stdout
    line = json.loads(cases.read_text())
    assert line["kind"] == "properties" and line["name"].endswith("test_property") and line["cases"] == 20
