"""Write every tutorial as a Jupyter notebook: part of the build of the site, see conf.py.

The code is that of the page, which tests/test_docs.py runs.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
NOTEBOOKS = DOCS / "generated" / "notebooks"
CODE = re.compile(r"^```python\n(.*?)^```\n", re.DOTALL | re.MULTILINE)


def cells(text: str) -> list[dict[str, Any]]:
    """The page cut at its python blocks."""
    found = []
    for place, part in enumerate(CODE.split(text)):
        kind = "code" if place % 2 else "markdown"
        cell: dict[str, Any] = {"cell_type": kind, "metadata": {}, "source": part.strip()}
        if place % 2:
            cell |= {"execution_count": None, "outputs": []}
        if cell["source"]:
            found.append(cell)
    return found


def main() -> None:
    """Write one notebook per tutorial."""
    NOTEBOOKS.mkdir(parents=True, exist_ok=True)
    for page in sorted((DOCS / "tutorials").glob("*.md")):
        if page.name == "index.md":
            continue
        text = re.sub(r"^\{download\}.*\n", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
        kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
        book = {"cells": cells(text), "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 4}
        (NOTEBOOKS / f"{page.stem}.ipynb").write_text(json.dumps(book, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
