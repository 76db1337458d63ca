"""Run the code of docs/gallery.md and put its pictures into docs/images: `python docs/make_gallery.py`."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

import matplotlib

DOCS = Path(__file__).resolve().parent


def main() -> None:
    """Run every python block in one namespace, in a folder of its own, and keep the pictures it saves."""
    matplotlib.use("Agg")
    page = (DOCS / "gallery.md").read_text()
    names: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for block in re.findall(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE):
            exec(compile(block, "gallery.md", "exec"), names)
        for picture in sorted(Path(folder).glob("*.png")):
            shutil.copy(picture, DOCS / "images" / picture.name)
            print(f"{picture.name}: {picture.stat().st_size / 1000:.0f} kB")
        os.chdir(DOCS)


if __name__ == "__main__":
    main()
