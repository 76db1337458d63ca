"""The report: one HTML file without external resources."""

from __future__ import annotations

import base64
import hashlib
import html
import os
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from corten.evidence.audit_table import Audit
from corten.evidence.score_log import ScoreLog
from corten.io.whole import refuse_no_page, refuse_taken, whole_file
from corten.report.content import page_content, safe_json

if TYPE_CHECKING:
    from corten.results.intervals import Intervals

SCRIPTS = ("data.js", "chart.js", "panels.js", "explorer.js", "evidence.js", "page.js")


def write_report(
    result: Intervals, path: str | os.PathLike[str], *, overwrite: bool = False, audit: Audit | None = None,
    command: str = "", scores: ScoreLog | None = None,
) -> Path:  # fmt: skip
    """Write an HTML page with figures, settings and warnings; it opens in any browser without a network.

    Parameters
    ----------
    path, overwrite
        As for `Fitted.save`, but for the suffix ``.html``.
    audit : Audit, optional
        The result of ``fitted.audit()``; adds the coverage that it found.
    scores : ScoreLog, optional
        Scores of the past, from ``fitted.verify`` or ``ScoreLog.read``; adds the coverage over time.
    command : str, optional
        The command that made the result, shown beside the call.
    """
    target = Path(path)
    refuse_taken(target, overwrite)
    refuse_no_page(target)
    page = render(page_content(result, audit, command=command, scores=scores))
    with whole_file(target, overwrite) as temporary:
        temporary.write_text(page, encoding="utf-8", newline="\n")
    return target


def render(content: Mapping[str, object]) -> str:
    """The HTML page; its content security policy allows this script only, by its hash, and no external resource."""
    script = "\n".join(_asset(name) for name in SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    parts = {
        "policy": f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:",
        "title": html.escape(f"{content['title']} filled with intervals"),
        "style": _asset("page.css"),
        "script": script,
        "content": safe_json(content),
    }
    # One pass, so that a label with the text {{script}} is not replaced.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return files("corten.report").joinpath("assets", name).read_text(encoding="utf-8")
