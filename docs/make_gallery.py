"""Run the code of docs/gallery.md and keep its pictures: part of the build of the site, see conf.py."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import tempfile
from pathlib import Path

DOCS = Path(__file__).resolve().parent
PICTURES = DOCS / "generated" / "gallery"


def main() -> None:
    """Run every python block in one namespace, in a folder of its own. Pictures newer than the page are kept."""
    page = DOCS / "gallery.md"
    text = page.read_text(encoding="utf-8")
    wanted = [PICTURES / name for name in re.findall(r"generated/gallery/([\w-]+\.png)", text)]
    if all(one.exists() and one.stat().st_mtime > page.stat().st_mtime for one in wanted):
        return
    import matplotlib

    matplotlib.use("Agg")
    PICTURES.mkdir(parents=True, exist_ok=True)
    names: dict[str, object] = {}
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        os.chdir(folder)
        try:
            for block in re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
                exec(compile(block, "gallery.md", "exec"), names)
            for one in wanted:
                shutil.copy(one.name, one)
        finally:
            os.chdir(before)


if __name__ == "__main__":
    main()
