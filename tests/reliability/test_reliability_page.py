"""The page of the reliability runs, and the exit code of a part that found something."""

import json
import sys

import pytest

from reliability import run
from reliability.page import write_page

ABOUT = {"seed": 3, "date": "today", "seconds": 60.0, "versions": "corten 0"}


def fault(**changed):
    return {"struck": 5, "survived": 5, "missed": 2, "failed": [], "seconds": 1.0} | changed


def faults(**named):
    return {"faults": named, "slowest_interrupt": 0.9, "stall": 0.2, "within": 1.0}


def test_the_page_says_what_struck_and_shows_no_folder_of_the_machine(tmp_path):
    broken, absent = fault(survived=4, failed=["number 1: it broke"]), fault(struck=0, not_here="no")
    found = faults(one=fault(), two=broken, three=absent)
    (tmp_path / "faults-3.json").write_text(json.dumps(ABOUT | found))
    said = (
        "pip said\n" * 40
        + "see /tmp/corten-environment-x1/tree/tests/test_a.py\nERROR: https://host.example/simple/x\n"
    )
    (tmp_path / "lowest-3.json").write_text(json.dumps(ABOUT | {"passed": False, "said": said}))
    assert write_page(tmp_path, tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "| one | 5 | 5 struck, 5 survived; 2 came too late and were drawn again |" in page
    assert "| three | 0 | no |" in page and "- two: number 1: it broke" in page
    assert "0.90 s, of which the machine was busy elsewhere for 0.20 s" in page
    assert "/tmp" not in page and "host.example" not in page and "see .../test_a.py / ERROR: https:.../x" in page
    assert page.count("pip said") == 2


@pytest.mark.parametrize("failed", [[], ["number 0: it broke"]])
def test_a_part_that_found_something_ends_with_one(failed, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(run.PARTS, "faults", (lambda size, seed: faults(one=fault(failed=failed)), 1))
    monkeypatch.setattr(run, "versions", lambda: "")
    monkeypatch.setattr(sys, "argv", ["run.py", "faults", "--results", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        run.main()
    assert bool(ended.value.code) == bool(failed)
    assert ("it broke" in capsys.readouterr().err) == bool(failed)
