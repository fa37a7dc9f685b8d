"""The protocol: what is fitted on what, who sees the test labels, and the run folder."""

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import torch

from lagformer import Lagformer, LagformerConfig, experiment, peers
from lagformer.experiment import Settings, load_split, run_forda, score_on_test
from lagformer.results import COLUMNS
from lagformer.training.history import EpochRecord, read_history
from lagformer.training.queue import Task
from lagformer.training.recipe import RECIPES, Recipe

N_TRAIN, N_TEST, LENGTH = 40, 20, 32


def write_data(folder: Path, *, shuffle_test: bool = False) -> None:
    """Tiny FordA and FordB: sines of two frequencies, labels -1 and 1."""
    rng = np.random.default_rng(0)
    for name in ("FordA", "FordB"):
        for part, n in (("TRAIN", N_TRAIN), ("TEST", N_TEST)):
            labels = np.where(np.arange(n) % 3 == 0, -1, 1)
            phase = 6.28 * rng.random((n, 1))
            X = np.sin(phase + np.arange(LENGTH) * (0.6 + 0.3 * labels[:, None]))
            X = (X - X.mean(1, keepdims=True)) / X.std(1, keepdims=True)
            if shuffle_test and part == "TEST":
                labels = -labels
            rows = [
                "\t".join([str(y), *map(repr, map(float, x))])
                for y, x in zip(labels, X, strict=True)
            ]
            (folder / f"{name}_{part}.tsv").write_text("\n".join(rows) + "\n")


@pytest.fixture(autouse=True)
def _data(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.mktemp("ucr")
    write_data(folder)
    monkeypatch.setenv("LAGFORMER_DATA", str(folder))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Train in this process: quicker. Returns the names trained so far."""
    trained: list[str] = []

    def run_here(
        tasks: list[Task],
        *,
        jobs: int,
        on_epoch: Callable[[str, EpochRecord], None],
    ) -> dict[str, Any]:
        results = {}
        for task in tasks:
            results[task.name] = task.function(
                *task.arguments, lambda record, name=task.name: on_epoch(name, record)
            )
            trained.append(task.name)
        return results

    monkeypatch.setattr(experiment, "run_queue", run_here)
    return trained


def scores_only(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if "seconds" not in k} for row in result["rows"]]


SHORT = Settings(epochs=2)


def test_the_result_has_every_row(here: list[str], tmp_path: Path) -> None:
    settings = Settings(("raw", "dithered", "fordb"), (0, 7), epochs=2, ablations=True)
    result = run_forda(settings, tmp_path / "run", x_best=0.9)
    found = {(r["method"], r["data"], r["seed"], r["split"]) for r in result["rows"]}
    assert len(found) == len(result["rows"])
    expected = set()
    for data in settings.data:
        for seed in (0, 7):
            expected.add(("lagformer", data, seed, "test"))
            for method in ("random", "logistic-raw", "logistic-log-spectrum"):
                expected |= {(method, data, seed, split) for split in ("validation", "test")}
        expected.add(("lagformer", data, 0, "validation"))
        expected.add(("lagformer-ensemble", data, "0+7", "test"))
    for ablation in ("half-patches", "half-epochs", "half-epochs-plain", "toeplitz"):
        expected.add((ablation, "raw", 0, "validation"))
    assert found == expected
    for row in result["rows"]:
        size = N_TEST if row["split"] == "test" else N_TRAIN // 5
        assert np.sum(row["confusion"]) == size
        assert row["mark"] == pytest.approx(100 * (row["macro_f1"] - 0.5) / 0.4)
    means = {
        (g["data"], g["method"], g["split"]): (g["macro_f1_mean"], g["macro_f1_sd"])
        for g in result["summary"]
    }
    two = [
        r["macro_f1"]
        for r in result["rows"]
        if (r["method"], r["data"], r["split"]) == ("lagformer", "fordb", "test")
    ]
    assert means["fordb", "lagformer", "test"] == pytest.approx(
        (sum(two) / 2, abs(two[0] - two[1]) / 2**0.5)
    )


def test_the_ablations_are_those_of_the_published_table_and_scalar_lags(
    here: list[str], tmp_path: Path
) -> None:
    run_forda(Settings(("raw",), epochs=4, ablations=True), tmp_path / "run")
    models = tmp_path / "run" / "models"
    epochs = {
        p.name.split("validation-")[1]: len(read_history(p / "history.jsonl"))
        for p in models.glob("*-validation-*")
    }
    assert epochs == {
        "lagformer": 4,
        "half-patches": 4,
        "half-epochs": 2,
        "half-epochs-plain": 2,
        "toeplitz": 4,
    }
    with safetensors.safe_open(
        models / "raw-seed0-validation-half-patches" / "model.safetensors", "pt"
    ) as file:
        assert json.loads(file.metadata()["config"])["patch_length"] == 5
    weights = {
        p.parent.name: p.read_bytes()
        for p in models.glob("raw-seed0-validation-half-epochs*/model.safetensors")
    }
    assert len(set(weights.values())) == 2, "the augmentation must make a difference"


def test_the_run_folder(here: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = run_forda(SHORT, folder)
    assert json.loads((folder / "result.json").read_text()) == json.loads(json.dumps(result))
    for file, split in (("forda.csv", "test"), ("validation.csv", "validation")):
        with (folder / file).open(newline="") as lines:
            table = list(csv.DictReader(lines))
        assert tuple(table[0]) == COLUMNS
        rows = [r for r in result["rows"] if r["split"] == split]
        assert [r["method"] for r in table] == [r["method"] for r in rows]
        assert [float(r["macro_f1"]) for r in table] == [r["macro_f1"] for r in rows]
    assert not list(folder.rglob("*.tmp")) + list(folder.rglob("checkpoint*"))

    home = folder / "models" / "dithered-seed0-test-lagformer"
    assert [r["epoch"] for r in read_history(home / "history.jsonl")] == [1, 2]
    with safetensors.safe_open(home / "model.safetensors", "pt") as file:
        config = LagformerConfig.from_json(file.metadata()["config"])
        model = Lagformer(config)
        model.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    split = load_split("dithered")
    with torch.no_grad():
        predicted = model.eval()(torch.from_numpy(split.test.values)).argmax(1)
    outcome = json.loads((home / "outcome.json").read_text())
    assert predicted.tolist() == outcome["predicted"]
    row = next(
        r
        for r in result["rows"]
        if (r["method"], r["data"], r["split"]) == ("lagformer", "dithered", "test")
    )
    assert row["macro_f1"] == score_on_test("dithered", split.classes[predicted]).macro_f1
    assert row["parameters"] == sum(p.numel() for p in model.parameters())


def test_the_ensemble_is_the_mean_of_the_models_probabilities(
    here: list[str], tmp_path: Path
) -> None:
    result = run_forda(Settings(("fordb",), (0, 1, 2), epochs=1), tmp_path / "run")
    rows = {(r["method"], r["seed"]): r for r in result["rows"] if r["split"] == "test"}
    row = rows["lagformer-ensemble", "0+1+2"]
    split, total = load_split("fordb"), np.zeros((N_TEST, 2))
    for seed in range(3):
        home = tmp_path / "run" / "models" / f"fordb-seed{seed}-test-lagformer"
        with safetensors.safe_open(home / "model.safetensors", "pt") as file:
            model = Lagformer(LagformerConfig.from_json(file.metadata()["config"])).eval()
            model.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
        with torch.no_grad():
            logits = model(torch.from_numpy(split.test.values)).numpy().astype(np.float64)
        odds = np.exp(logits)
        total += odds / odds.sum(1, keepdims=True)
        stored = json.loads((home / "outcome.json").read_text())["probabilities"]
        np.testing.assert_allclose(stored, odds / odds.sum(1, keepdims=True), rtol=1e-12)
    truth = score_on_test("fordb", split.classes[total.argmax(1)])
    assert (row["macro_f1"], row["confusion"]) == (truth.macro_f1, truth.confusion)
    for cost in ("parameters", "fit_seconds", "predict_seconds"):
        assert row[cost] == pytest.approx(sum(rows["lagformer", s][cost] for s in range(3)))
    with (tmp_path / "run" / "forda.csv").open(newline="") as lines:
        assert [r["seed"] for r in csv.DictReader(lines)][-1] == "0+1+2"


def test_the_validation_run_never_sees_its_held_out_series(
    here: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    original = experiment.train_model

    def spy(plan: Any, folder: Any, targets: Any, train: Any, unseen: Any, on_epoch: Any) -> Any:
        seen[plan.where] = train[0][:, 0], unseen[0][:, 0]
        return original(plan, folder, targets, train, unseen, on_epoch)

    monkeypatch.setattr(experiment, "train_model", spy)
    run_forda(Settings(("raw",), epochs=1), tmp_path / "run")
    fitted, held_out = ({tuple(x) for x in part} for part in seen["validation"])
    everything, test = ({tuple(x) for x in part} for part in seen["test"])
    assert (len(fitted), len(held_out)) == (32, 8)
    assert fitted | held_out == everything
    assert not everything & test
    assert len(test) == N_TEST


def test_no_choice_depends_on_the_test_labels(
    here: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turn every test label round: only the scores on the test set may change."""
    first = run_forda(SHORT, tmp_path / "a")
    (tmp_path / "turned").mkdir()
    write_data(tmp_path / "turned", shuffle_test=True)
    monkeypatch.setenv("LAGFORMER_DATA", str(tmp_path / "turned"))
    second = run_forda(SHORT, tmp_path / "b")
    for a, b in zip(scores_only(first), scores_only(second), strict=True):
        assert (a == b) == (a["split"] == "validation")
        if a["split"] == "test":
            assert a["accuracy"] == pytest.approx(1 - b["accuracy"])
    for path in (tmp_path / "a" / "models").rglob("model.safetensors"):
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes()


def test_test_labels_are_dropped_on_loading() -> None:
    for variant in ("raw", "dithered", "fordb"):
        assert load_split(variant).test.labels is None


def test_the_dither_is_the_documented_one() -> None:
    raw, dithered = load_split("raw"), load_split("dithered")
    rng = np.random.default_rng(0)
    train = raw.train.values + rng.normal(0, 0.01, raw.train.values.shape)
    test = raw.test.values + rng.normal(0, 0.01, raw.test.values.shape)
    np.testing.assert_array_equal(dithered.train.values, train)
    np.testing.assert_array_equal(dithered.test.values, test)
    np.testing.assert_array_equal(raw.labels, dithered.labels)


# ------------------------------------------------------------------------------ resuming, refusing


def test_finished_models_are_reused(here: list[str], tmp_path: Path) -> None:
    first = run_forda(SHORT, tmp_path)
    count = len(here)
    again = run_forda(SHORT, tmp_path, x_best=0.95)
    assert len(here) == count == 4
    assert scores_only(again) == [
        row | {"mark": pytest.approx(100 * (row["macro_f1"] - 0.5) / 0.45)}
        for row in scores_only(first)
    ]


def test_an_interrupted_run_is_resumed(
    here: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run_forda(SHORT, tmp_path / "whole")
    original = experiment.fit
    calls = 0

    def dying(*args: Any, on_epoch: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1

        def interrupt(record: EpochRecord) -> None:
            if calls == 2:
                raise KeyboardInterrupt

        return original(*args, on_epoch=interrupt, **kwargs)

    here.clear()
    monkeypatch.setattr(experiment, "fit", dying)
    with pytest.raises(KeyboardInterrupt):
        run_forda(SHORT, tmp_path / "run")
    monkeypatch.setattr(experiment, "fit", original)
    assert len(here) == 1
    assert not (tmp_path / "run" / "result.json").exists()
    assert len(list((tmp_path / "run").rglob("checkpoint.safetensors"))) == 1
    assert scores_only(run_forda(SHORT, tmp_path / "run")) == scores_only(expected)
    assert len(here) == 4


@pytest.mark.parametrize("change", ["settings", "data", "damaged", "files"])
def test_a_foreign_folder_is_refused_and_kept(
    change: str, here: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    settings = SHORT
    if change == "files":
        folder.mkdir()
        (folder / "thesis.txt").write_text("mine")
    else:
        run_forda(SHORT, folder)
    if change == "settings":
        settings = Settings(epochs=3)
    elif change == "damaged":
        (folder / "run.json").write_text("{")
    elif change == "data":
        other = tmp_path / "other"
        other.mkdir()
        write_data(other)
        text = (other / "FordA_TEST.tsv").read_text()
        (other / "FordA_TEST.tsv").write_text(text.replace("\t0.", "\t0.0", 1))
        monkeypatch.setenv("LAGFORMER_DATA", str(other))
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    with pytest.raises(ValueError, match=r"choose another folder") as raised:
        run_forda(settings, folder)
    assert "\n" not in str(raised.value)
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


def test_a_run_that_died_before_its_first_word_is_resumed(here: list[str], tmp_path: Path) -> None:
    (tmp_path / "run.json.tmp").write_text('{"lagf')
    run_forda(Settings(("raw",), epochs=1), tmp_path)
    assert (tmp_path / "result.json").exists()


@pytest.mark.parametrize("file", ["outcome.json", "checkpoint.safetensors"])
def test_damaged_files_of_a_model_are_one_line(file: str, here: list[str], tmp_path: Path) -> None:
    run_forda(SHORT, tmp_path)
    home = tmp_path / "models" / "raw-seed0-test-lagformer"
    (home / "outcome.json").unlink()
    (home / file).write_text("{")
    with pytest.raises(ValueError, match=f"{file} is damaged") as raised:
        run_forda(SHORT, tmp_path)
    assert "\n" not in str(raised.value)


def test_an_outcome_without_probabilities_is_one_line(here: list[str], tmp_path: Path) -> None:
    run_forda(SHORT, tmp_path)
    path = tmp_path / "models" / "raw-seed0-test-lagformer" / "outcome.json"
    outcome = json.loads(path.read_text())
    del outcome["probabilities"]
    path.write_text(json.dumps(outcome))
    with pytest.raises(ValueError, match=r"holds no probabilities.*remove its folder to train"):
        run_forda(SHORT, tmp_path)


def test_a_folder_of_another_recipe_is_refused(
    here: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(("raw",), preset="base", epochs=1)
    run_forda(settings, tmp_path)
    monkeypatch.setitem(RECIPES, "base", RECIPES["base"] | {"weight_decay": 0.07})
    with pytest.raises(ValueError, match="other settings"):
        run_forda(settings, tmp_path)


def test_without_epochs_the_preset_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RECIPES, "base", {"epochs": 17, "learning_rate": 3e-3})
    assert Settings(preset="base").recipe == Recipe(epochs=17, learning_rate=3e-3)
    assert Settings(preset="base", epochs=5).recipe == Recipe(epochs=5, learning_rate=3e-3)
    assert Settings(preset="base", quick=True).recipe == Recipe(epochs=3, learning_rate=3e-3)
    assert Settings(preset="base").label == "forda-base-raw+dithered-seeds0-17epochs"
    assert Settings().recipe == Recipe()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"data": ("raw", "FordA")}, "unknown data 'FordA'; known: raw, dithered, fordb"),
        ({"data": ()}, "data must name something"),
        ({"data": ("raw", "raw")}, "nothing twice"),
        ({"seeds": (0, -1)}, "seeds must lie in"),
        ({"seeds": (1, 1)}, "nothing twice"),
        ({"seeds": ()}, "seeds must name something"),
        ({"epochs": 0}, "epochs must be an integer ≥ 1, got 0"),
        ({"epochs": -3, "quick": True}, "epochs must be an integer ≥ 1, got -3"),
        ({"preset": "olimpiad"}, "unknown preset 'olimpiad'"),
        ({"preset": "base", "ablations": True}, "vary the published recipe: preset olympiad"),
    ],
)
def test_bad_settings_are_one_line(change: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Settings(**change)


def test_a_bad_best_score_is_refused_before_any_training(here: list[str], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must lie in"):
        run_forda(SHORT, tmp_path, x_best=0.4)
    assert not any(tmp_path.iterdir())


def test_labels_tell_settings_apart() -> None:
    variants = [
        Settings(),
        Settings(("raw",)),
        Settings(seeds=(1,)),
        Settings(seeds=(0, 1)),
        Settings(epochs=81),
        Settings(ablations=True),
        Settings(quick=True),
    ]
    assert len({s.label for s in variants}) == len(variants)
    assert Settings().label == "forda-olympiad-raw+dithered-seeds0-80epochs"


def test_warnings_say_what_a_result_is_not(here: list[str], tmp_path: Path) -> None:
    quick = run_forda(Settings(("raw",), quick=True), tmp_path / "a")["warnings"]
    assert "these numbers are not the result" in quick[0]
    assert "leaks its labels" in quick[1]
    assert run_forda(Settings(("fordb",), epochs=1), tmp_path / "b")["warnings"] == []


# -------------------------------------------------------------------------------------------- peers


class Recorder:
    """A peer that answers with the first class it saw, and notes what it was given."""

    fitted: list[tuple[str, int, np.ndarray, np.ndarray]]
    predicted: list[np.ndarray]

    def __init__(self, name: str, seed: int) -> None:
        self.name, self.seed = name, seed

    def fit(self, X: np.ndarray, y: np.ndarray) -> "Recorder":
        self.answer = y[0]
        self.fitted.append((self.name, self.seed, X, y))
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        self.predicted.append(X)
        return np.full(len(X), self.answer)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> type[Recorder]:
    monkeypatch.setattr(peers, "build_peer", Recorder)
    monkeypatch.setattr(experiment, "require_aeon", lambda: None)
    Recorder.fitted, Recorder.predicted = [], []
    return Recorder


def test_peers_fit_on_all_of_train_and_predict_the_test_set_once(
    here: list[str], recorder: type[Recorder], tmp_path: Path
) -> None:
    settings = Settings(("raw", "fordb"), (3, 4), epochs=1)
    result = run_forda(settings, tmp_path, peer_seeds=(3,))
    rows = [r for r in result["rows"] if r["method"] in peers.PEERS]
    assert [(r["method"], r["data"], r["seed"], r["split"]) for r in rows] == [
        (method, data, 3, "test") for data in ("raw", "fordb") for method in peers.PEERS
    ]
    assert all((r["preset"], r["parameters"]) == ("", 0) for r in rows)
    for data in settings.data:
        split = load_split(data)
        targets = (split.labels == 1).astype(int)
        mine = [f for f in recorder.fitted if np.array_equal(f[2], split.train.values)]
        assert [(name, seed) for name, seed, *_ in mine] == [(name, 3) for name in peers.PEERS]
        assert all(np.array_equal(y, targets) for *_, y in mine)
        seen = [X for X in recorder.predicted if np.array_equal(X, split.test.values)]
        assert len(seen) == len(peers.PEERS)
        guess = score_on_test(data, np.full(N_TEST, split.labels[0]))
        assert {r["accuracy"] for r in rows if r["data"] == data} == {guess.accuracy}


def test_peers_can_join_a_finished_run_and_are_reused(
    here: list[str], recorder: type[Recorder], tmp_path: Path
) -> None:
    settings = Settings(("raw",), (0, 1), epochs=1)
    alone = run_forda(settings, tmp_path)
    trained = len(here)
    joined = run_forda(settings, tmp_path, peer_seeds=(0,))
    assert len(here) == trained + 4
    assert scores_only(joined)[: len(alone["rows"])] == scores_only(alone)
    more = run_forda(settings, tmp_path, peer_seeds=(0, 1))
    assert len(here) == trained + 8
    assert [r for r in more["rows"] if r["seed"] == 0] == [
        r | {key: pytest.approx(r[key], abs=60) for key in r if "seconds" in key}
        for r in joined["rows"]
        if r["seed"] == 0
    ]
    assert more["peer_seeds"] == [0, 1]


def test_peers_without_aeon_are_one_line_before_any_work(
    here: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'lagformer\[aeon\]'$"):
        run_forda(SHORT, tmp_path, peer_seeds=(0,))
    assert not any(tmp_path.iterdir())


# ----------------------------------------------------------------------------------- real processes


@pytest.mark.slow
def test_scores_do_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    settings = Settings(("raw",), epochs=2)
    one = run_forda(settings, tmp_path / "one", jobs=1)
    two = run_forda(settings, tmp_path / "two", jobs=2)
    assert scores_only(one) == scores_only(two)
    models = list((tmp_path / "one").rglob("model.safetensors"))
    assert len(models) == 2
    for path in models:
        assert (
            path.read_bytes()
            == (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes()
        )


@pytest.mark.slow
def test_a_killed_command_is_resumed_to_the_same_weights(tmp_path: Path) -> None:
    settings = Settings(("raw",), epochs=60)
    command = [sys.executable, "-c", "from lagformer.cli import main; main()", "forda", "--json"]
    command += ["--data", "raw", "--epochs", "60", "--jobs", "2", "--out", str(tmp_path / "killed")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while not list((tmp_path / "killed").rglob("checkpoint.safetensors")):
        assert process.poll() is None
    process.kill()
    process.wait()
    assert not (tmp_path / "killed" / "result.json").exists()
    killed = run_forda(settings, tmp_path / "killed", jobs=2)
    whole = run_forda(settings, tmp_path / "whole", jobs=1)
    assert scores_only(killed) == scores_only(whole)
