"""The documentation tells the truth: its code runs, its commands have these options, its links lead somewhere.

The python blocks of a page share a namespace and run in a folder of their own. A block that cannot run here says so
on the line before, `<!-- not run: reason -->`.
"""

import importlib
import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import typer.main

import corten

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^(?P=indent)```", re.DOTALL | re.MULTILINE)
NOT_RUN = re.compile(r"<!-- not run: (?P<reason>[^>]+?) -->\s*$")
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)|(?:src|href)=\"(?P<quoted>[^\"]+)\"")
MOST_NOT_RUN = 5
HARDWARE = {"docs/gpu.md": "needs a GPU"}  # pages whose code asks for what this machine may lack


class Block(NamedTuple):
    language: str
    body: str
    line: int
    not_run: str | None


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order, with the line they start on."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        before = text[: match.start()]
        skipped = NOT_RUN.search(before)
        body = re.sub(rf"^{match['indent']}", "", match["body"], flags=re.MULTILINE)
        line = before.count("\n") + 2
        reason = skipped["reason"] if skipped else HARDWARE.get(name(page))
        found.append(Block(match["language"], body, line, reason))
    return found


def python_blocks(page: Path) -> list[Block]:
    return [block for block in blocks_of(page) if block.language == "python" and block.not_run is None]


def given_to(page: Path) -> dict[str, Any]:
    """What a page takes for granted: the README speaks of the reader's own data."""
    if page.name != "README.md":
        return {}
    field = np.add.outer(np.linspace(0, 1, 8), np.sin(np.arange(90.0) / 9).reshape(9, 10))
    rng = np.random.default_rng(0)
    x = field + 0.1 * rng.normal(size=field.shape)
    x[rng.random(x.shape) < 0.3] = np.nan
    return {"x": x}


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def commands() -> list[tuple[str, str]]:
    """Every line of a console block that calls corten, with its page."""
    found = []
    for page in PAGES:
        for block in blocks_of(page):
            if block.language not in ("", "console", "bash", "sh"):
                continue
            lines = re.split(r"\n|&&", block.body.replace("\\\n", " "))
            lines = [line.strip() for line in lines]
            found += [(name(page), line.removeprefix("$ ")) for line in lines if re.match(r"(\$ )?corten\s", line)]
    return found


LONG_PAGES = ("docs/howto/large-data.md", "docs/howto/scikit-learn.md", "docs/gallery.md", "docs/howto/xarray.md")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=name(page), marks=pytest.mark.slow if name(page) in LONG_PAGES else ())
        for page in PAGES
        if python_blocks(page)
    ],
)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    import matplotlib.pyplot as plt

    plt.switch_backend("Agg")
    names = {"__name__": "page"} | given_to(page)
    try:
        for block in python_blocks(page):
            # Line numbers of the page, so that an error leads to the line that is wrong.
            code = compile("\n" * (block.line - 1) + block.body, str(page), "exec")
            exec(code, names)
    finally:
        plt.close("all")


def test_few_blocks_are_not_run_and_each_says_why():
    skipped = [
        (name(page), block.line, block.not_run)
        for page in PAGES
        for block in blocks_of(page)
        if block.language == "python" and block.not_run is not None
    ]
    assert all(len(reason.split()) >= 2 for _, _, reason in skipped), skipped
    assert len(skipped) <= MOST_NOT_RUN, skipped


@pytest.mark.parametrize(("page", "line"), commands())
def test_commands_have_the_options_they_are_given(page, line):
    from corten.cli.app import app

    command = typer.main.get_command(app)
    words = shlex.split(line, comments=True)[1:]
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        assert words[0] in command.commands, f"{page}: there is no command {words[0]!r} in {line!r}"
        command = command.commands[words.pop(0)]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    known |= {"--help", "-h", "--debug"}
    given = {word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)}
    assert given <= known, f"{page}: {sorted(given - known)} in {line!r} is not among {sorted(known)}"


def outside() -> list[tuple[str, str]]:
    """Every call of the studies and benchmarks, in console blocks and inline, with its page."""
    call = re.compile(r"python -m (?:studies|benchmarks)\b[^`\n]*")
    return [(name(page), " ".join(line.split())) for page in PAGES for line in call.findall(page.read_text())]


@pytest.mark.parametrize(("page", "line"), outside())
def test_studies_and_benchmarks_have_the_options_they_are_given(page, line, capsys):
    module, *words = shlex.split(line, comments=True)[2:]
    if module == "benchmarks" and words and (ROOT / "benchmarks" / f"{words[0]}.py").is_file():
        words = words[:1]  # a script of that name, which parses the rest itself
    parser = importlib.import_module(f"{module}.__main__").parser()
    try:
        parser.parse_args(words)
    except SystemExit as left:
        # Prose may leave out what is required, and `--help` ends the program.
        said = capsys.readouterr().err
        assert left.code == 0 or "are required" in said, f"{page}: {line!r}: {said}"


def test_there_are_commands_and_pages_to_check():
    assert len(outside()) >= 8
    assert len(commands()) >= 10
    assert len(PAGES) >= 10


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_local_links_and_pictures_lead_somewhere(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    inside = ROOT / "docs" if page.is_relative_to(ROOT / "docs") else ROOT
    for match in LINK.finditer(re.sub(r"`[^`\n]*`", "", text)):
        target = match["target"] or match["quoted"]
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        if path.startswith("generated/"):
            continue  # made by the build, which fails where one is missing
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{name(page)}: {target} does not exist"
        assert found.is_relative_to(inside), f"{name(page)}: {target} is not part of the site"
        if anchor and found.suffix == ".md":
            assert anchor in anchors(found), f"{name(page)}: {target} has no such heading"


def anchors(page: Path) -> set[str]:
    """What the site calls the headings of a page."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ +(.+)$", text, flags=re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'id="([^"]+)"', text))


def test_the_reference_lists_every_public_name():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^   (corten\.\S+)$", page, re.MULTILINE))
    names = {f"corten.{name}" for name in corten.__all__ if callable(getattr(corten, name))}
    assert sorted(names - listed) == []


def test_every_page_of_the_site_is_in_a_table_of_contents():
    listed = {ROOT / "docs" / "index.md"}
    for page in PAGES:
        for body in re.findall(r"^```{toctree}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
            entries = [line for line in body.splitlines() if line and not line.startswith(":")]
            listed |= {(page.parent / f"{entry}.md").resolve() for entry in entries if "*" not in entry}
            listed |= {found for entry in entries if "*" in entry for found in page.parent.glob(f"{entry}.md")}
    tables = {page for page in PAGES if page.parent.name in ("results", "benchmarks-run")}  # parts of a page, not pages
    there = set(PAGES) - {ROOT / "README.md"} - tables
    assert sorted(map(name, there - listed)) == [], "these pages are in no toctree"
    assert sorted(map(str, listed - there)) == [], "a toctree lists pages that are not there"


def test_the_architecture_names_every_room_and_no_file_that_is_not_there():
    """A table cell may list several files of one folder; a section may stand for its folder."""
    source = ROOT / "src" / "corten"
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = [room.name for room in source.iterdir() if (room / "__init__.py").exists()]
    assert [room for room in rooms if f"{room}/" not in text] == []
    there = {path.name for folder in (source, ROOT / "studies", ROOT / "benchmarks") for path in folder.rglob("*.py")}
    named = {name.rpartition("/")[2] for name in re.findall(r"`([\w/]+\.py)`", text)}
    assert sorted(named - there - {"test_public_api.py", "test_architecture.py"}) == []
