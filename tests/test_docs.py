"""The written pages: their Python runs and prints what they say, their links and commands exist."""

import contextlib
import csv
import io
import re
import runpy
import shlex
from pathlib import Path

import pytest
import torch
import typer

import lagformer.cli
from lagformer.attention import feature_map_names

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
PAGES += sorted((ROOT / "docs").glob("*.md"))
RUN = [page for page in PAGES if page.name not in ("CONTRIBUTING.md", "CHANGELOG.md")]

BLOCK = re.compile(r"(<!-- not run -->\s*)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
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
