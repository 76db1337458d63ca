"""Run every tutorial, and write it as a Jupyter notebook with its output: part of the build of the site, see conf.py.

The site shows the same output below the code of the page. Tutorials that have been run since they or the package were
changed are not run again.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import re
import tempfile
import warnings
from pathlib import Path
from typing import Any

import corten

DOCS = Path(__file__).resolve().parent
NOTEBOOKS = DOCS / "generated" / "notebooks"
CODE = re.compile(r"^```python\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
NOT_RUN = re.compile(r"<!-- not run: [^>]+? -->\s*$")
PICTURE_DPI = 80


def cells(text: str) -> list[dict[str, Any]]:
    """The page cut at its python blocks, without output."""
    found = []
    parts = CODE.split(text)
    for place, part in enumerate(parts):
        kind = "code" if place % 2 else "markdown"
        cell: dict[str, Any] = {"cell_type": kind, "metadata": {}, "source": part.strip()}
        if place % 2:
            cell |= {"execution_count": None, "outputs": [], "run": not NOT_RUN.search(parts[place - 1])}
        if cell["source"]:
            found.append(cell)
    return found


def run(found: list[dict[str, Any]], name: str) -> None:
    """Run the code of a page in one namespace, in a folder of its own, and keep what a notebook would show."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names: dict[str, Any] = {"__name__": "tutorial"}
    before, count = Path.cwd(), 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for cell in (one for one in found if one["cell_type"] == "code"):
                if not cell.pop("run"):
                    continue
                count += 1
                cell["execution_count"], cell["outputs"] = count, _outputs(cell["source"], names, name, count)
                plt.close("all")
        finally:
            os.chdir(before)


def _outputs(source: str, names: dict[str, Any], name: str, count: int) -> list[dict[str, Any]]:
    """What one block prints, draws and ends with, as outputs of a notebook."""
    import matplotlib.pyplot as plt

    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(tree, name, "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), name, "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue()})
    pictures = [plt.figure(number) for number in plt.get_fignums()]
    for figure in pictures:
        stream = io.BytesIO()
        figure.savefig(stream, format="png", dpi=PICTURE_DPI, bbox_inches="tight")
        data = {"image/png": base64.b64encode(stream.getvalue()).decode(), "text/plain": "<Figure>"}
        outputs.append({"output_type": "display_data", "metadata": {}, "data": data})
    if value is not None and not pictures and not isinstance(value, Path):  # where a file was written
        data = {"text/plain": repr(value)}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = value._repr_html_()
        outputs.append({"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": data})
    return outputs


def with_outputs(text: str, name: str) -> str:
    """The text of a tutorial with the output of its code below each block, and pictures as files."""
    book = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))
    code = iter([cell for cell in book["cells"] if cell["cell_type"] == "code"])
    return CODE.sub(lambda block: block[0] + _shown(next(code)["outputs"], name), text)


def _shown(outputs: list[dict[str, Any]], name: str) -> str:
    """The output of one block in Markdown."""
    parts = []
    for one in outputs:
        text = one["text"] if "text" in one else one["data"]["text/plain"]
        picture = one.get("data", {}).get("image/png")
        if picture is None:
            parts.append(f"```text\n{text.rstrip()}\n```")
            continue
        path = NOTEBOOKS / f"{name}-{len(list(NOTEBOOKS.glob(f'{name}-*.png'))) + 1}.png"
        path.write_bytes(base64.b64decode(picture))
        parts.append(f"![Output of the code above](/generated/notebooks/{path.name})")
    return "".join(f"\n{part}\n" for part in parts)


def main() -> None:
    """Write one notebook per tutorial, with its output."""
    NOTEBOOKS.mkdir(parents=True, exist_ok=True)
    for picture in NOTEBOOKS.glob("*.png"):
        picture.unlink()
    package = max(path.stat().st_mtime for path in Path(corten.__file__).parent.rglob("*.py"))
    for page in sorted((DOCS / "tutorials").glob("*.md")):
        target = NOTEBOOKS / f"{page.stem}.ipynb"
        if page.name == "index.md" or (
            target.exists() and target.stat().st_mtime > max(page.stat().st_mtime, package)
        ):
            continue
        text = re.sub(r"^\{download\}.*\n", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
        found = cells(text)
        run(found, page.name)
        for cell in found:
            cell.pop("run", None)
        kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
        book = {"cells": found, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 4}
        target.write_text(json.dumps(book, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
