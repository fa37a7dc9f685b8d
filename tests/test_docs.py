"""The written pages: their Python runs and prints what they say, their links and commands exist.

The book is built once, as `make docs` does, which runs its notebooks; the pages are then read.
"""

import contextlib
import csv
import io
import re
import runpy
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
import typer

import lagformer.cli
from lagformer.attention import feature_map_names

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
DOCS = ROOT / "docs"
PAGES += sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)
RUN = [page for page in PAGES if page.name not in ("CONTRIBUTING.md", "CHANGELOG.md")]
CELL = "{code-cell} ipython3"
NOTEBOOKS = [page for page in PAGES if CELL in page.read_text("utf-8")]

BLOCK = re.compile(r"(<!-- not run -->\s*)?^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# A print of its own line, and what the comment beside it says it prints.
PRINT = re.compile(r"^ *print\(.*\)  # (.+)$", re.MULTILINE)


def blocks(page: Path, language: str) -> list[str]:
    """Code of one language, without blocks marked as not run."""
    found = BLOCK.findall(page.read_text("utf-8"))
    return [code for skipped, name, code in found if name == language and not skipped]


def prose(page: Path) -> str:
    return BLOCK.sub("", page.read_text("utf-8"))


def slug(heading: str) -> str:
    """The anchor that a heading gets."""
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, in one namespace a page."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    with torch.random.fork_rng():
        for code in blocks(page, "python"):
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(code, page.name, "exec"), namespace)
            assert printed.getvalue().splitlines() == PRINT.findall(code)


def test_there_is_something_to_run() -> None:
    assert sum(len(blocks(page, "python")) for page in RUN) >= 10


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = page.parent / path if path else page
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", prose(linked), re.MULTILINE)
            assert anchor in map(slug, headings), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist(page: Path) -> None:
    """Each ``lagformer COMMAND`` in code, with its options."""
    commands = typer.main.get_command(lagformer.cli.app.app).commands
    spans = re.findall(r"`([^`]+)`", prose(page))
    lines = [line for code in blocks(page, "bash") for line in code.splitlines()] + spans
    for line in lines:
        words = shlex.split(line, comments=True) if line.startswith("lagformer ") else []
        if len(words) < 2 or words[1] in ("COMMAND", "--help"):
            continue
        assert words[1] in commands, line
        options = {name for p in commands[words[1]].params for name in p.opts + p.secondary_opts}
        assert {word for word in words if word.startswith("--")} <= options | {"--help"}, line


def test_every_command_is_described() -> None:
    commands = typer.main.get_command(lagformer.cli.app.app).commands
    headings = re.findall(r"^## (\w+)$", (ROOT / "docs" / "cli.md").read_text("utf-8"), re.M)
    assert set(headings) == set(commands)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_exist(page: Path) -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    code = blocks(page, "bash") + re.findall(r"`([^`]+)`", prose(page))
    for line in "\n".join(code).splitlines():
        if line.startswith("make "):
            assert set(line.split("#")[0].split()[1:]) <= set(targets), line


def test_the_tables_of_feature_maps_are_those_of_the_benchmark() -> None:
    page = (ROOT / "docs" / "feature_maps.md").read_text("utf-8")
    benchmark = runpy.run_path(str(ROOT / "benchmarks" / "feature_maps.py"))
    path = ROOT / "benchmarks" / "results" / "feature_maps.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    measured = {row["map"] for row in rows}
    for name in feature_map_names():
        assert f"| `{name}` | " in page
        assert name in measured
    for dim in benchmark["DIMS"]:
        assert benchmark["table"](rows, dim) in page


# ---------------------------------------------------------------------------------------- the book


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The book's HTML; a cell that fails, or a warning of any kind, fails the build."""
    html = tmp_path_factory.mktemp("book") / "html"
    strict = ["-q", "-E", "-W", "-n", "--keep-going", "-j", "2"]
    command = [sys.executable, "-m", "sphinx", *strict, str(DOCS), str(html)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr[-8000:]
    return html


class Resources(HTMLParser):
    """What a page loads by itself, and its images."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.loaded += [value for name in ("src", "srcset", "data") if (value := found.get(name))]
        if tag == "link":
            self.loaded.append(found.get("href") or "")
        if tag == "img":
            self.images.append(found)


def is_remote(address: str) -> bool:
    return bool(re.match(r"\s*(\w+:)?//", address))


@pytest.mark.xdist_group("book")
def test_every_page_is_in_the_book_and_run(book: Path) -> None:
    for page in PAGES:
        if DOCS in page.parents:
            html = (book / page.relative_to(DOCS).with_suffix(".html")).read_text("utf-8")
            assert html.count('class="cell_input') == len(blocks(page, CELL)), page
            assert "output stderr" not in html, page


@pytest.mark.xdist_group("book")
def test_the_book_loads_nothing_from_elsewhere(book: Path) -> None:
    pages = list(book.rglob("*.html"))
    assert pages
    for page in pages:
        assert not [address for address in Resources(page).loaded if is_remote(address)], page
    for sheet in book.rglob("*.css"):
        text = sheet.read_text("utf-8")
        found = re.findall(r"""(?:url\(|@import)\s*["']?([^"')]*)""", text)
        assert not [address for address in found if is_remote(address)], sheet


@pytest.mark.xdist_group("book")
def test_figures_say_what_they_show(book: Path) -> None:
    images = [image for page in book.rglob("*.html") for image in Resources(page).images]
    assert len(images) > 15
    for page in NOTEBOOKS:  # a cell that says what its figure shows has drawn one
        shown = Resources((book / page.relative_to(DOCS)).with_suffix(".html")).images
        said = re.findall(r'^:mystnb: .image: .alt: "(.+)"..$', page.read_text("utf-8"), re.M)
        assert [image["alt"] for image in shown if image["alt"] in said] == said, page
    for image in images:
        alt = image.get("alt")
        assert alt, image
        assert not alt.startswith(("_images", "../_images")), image


@pytest.mark.xdist_group("book")
def test_formulae_are_drawn_by_the_browser(book: Path) -> None:
    page = book / "guide" / "kernel.html"
    assert page.read_text("utf-8").count("<math ") > 20
    assert not [address for address in Resources(page).loaded if "mathjax" in address.lower()]


def test_a_remote_address_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text('<link href="//a.example/x.css"><script src="https://b.example/y.js"></script>')
    assert all(map(is_remote, Resources(page).loaded))
    assert len(Resources(page).loaded) == 2
    assert not is_remote("../_static/book.css")


@pytest.mark.parametrize("page", sorted((DOCS / "guide").glob("*.md")), ids=lambda page: page.name)
def test_chapters_have_exercises_with_hidden_solutions(page: Path) -> None:
    text = page.read_text("utf-8")
    _, _, exercises = text.partition("\n## Exercises\n")
    count = len(re.findall(r"^\*\*\d\.", exercises, re.MULTILINE))
    solutions = len(re.findall(r"^<details>\n<summary>Solution</summary>\n\n", exercises, re.M))
    assert count == solutions == text.count("</details>") >= 2


@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda page: page.name)
def test_notebooks_open_as_notebooks(page: Path) -> None:
    """Jupytext and MyST-NB go by the header."""
    header = page.read_text("utf-8").split("\n---\n", 1)[0]
    assert "format_name: myst" in header
    assert "name: python3" in header


@pytest.mark.parametrize(
    ("line", "protected"),
    [
        ("`classes_` are sorted", "``classes_`` are sorted"),
        ("classes_: |lag| < R", r"classes\_: \|lag\| < R"),
        ("Float[Tensor, '*batch T']", r"Float[Tensor, '\*batch T']"),
        ("snake_case and ``raw_*``", "snake_case and ``raw_*``"),
    ],
)
def test_docstrings_are_shown_as_written(line: str, protected: str) -> None:
    extension = runpy.run_path(str(DOCS / "_ext" / "plain_docstrings.py"))
    assert extension["protect"](line) == protected
