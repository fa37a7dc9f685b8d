"""train, evaluate, predict, scan: what they print, wrong input of every kind, and sudden death."""

import csv
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile

from lagformer import LagformerClassifier, cli
from lagformer.training.lock import alone_in

from .conftest import Call, refused

RUN = [sys.executable, "-c", "from lagformer.cli import main; main()"]
RNG = np.random.default_rng(0)


def series(n: int, length: int = 30) -> list[tuple[int, np.ndarray]]:
    """Class 1 or 2, and a slow or a fast sine."""
    rng = np.random.default_rng(n)
    return [
        (1 + i % 2, np.sin((0.5 + i % 2) * np.arange(length) + 6 * rng.random())) for i in range(n)
    ]


def write_tsv(path: Path, rows: list[tuple[int, np.ndarray]]) -> Path:
    path.write_text("\n".join("\t".join(map(repr, [c, *x.tolist()])) for c, x in rows) + "\n")
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small UCR data set, files of other formats, a recording and a trained model."""
    folder = tmp_path_factory.mktemp("home")
    write_tsv(folder / "Tone_TRAIN.tsv", series(20))
    write_tsv(folder / "Tone_TEST.tsv", series(10))
    samples = np.concatenate([x for _, x in series(10)])
    (folder / "recording.csv").write_text("x\n" + "\n".join(map(repr, samples.tolist())) + "\n")
    soundfile.write(folder / "recording.wav", samples, 100, subtype="DOUBLE")
    rows = [(int(line.split("\t")[0]), line.split("\t")[1:]) for line in
            (folder / "Tone_TRAIN.tsv").read_text().splitlines()]  # fmt: skip
    X, y = np.array([x for _, x in rows], dtype=float), np.array([c for c, _ in rows])
    model = LagformerClassifier(max_epochs=40, learning_rate=3e-3, random_state=0)
    model.fit(list(X), y).save(folder / "model")
    return folder


@pytest.fixture
def call(call: Call, monkeypatch: pytest.MonkeyPatch, home: Path, tmp_path: Path) -> Call:
    """Run the command line in an empty folder, with the data set of `home`."""
    monkeypatch.setenv("LAGFORMER_DATA", str(home))
    monkeypatch.chdir(tmp_path)
    return call


# ---------------------------------------------------------------------------------- what they print


def test_train_evaluate_predict(call: Call, home: Path) -> None:
    code, out, err = call(
        "train", "Tone", "--out", "m", "--epochs", 40, "--learning-rate", 0.003, "--json"
    )
    assert (code, err) == (0, "")
    trained = json.loads(out)
    assert trained["model"] == "m"
    assert trained["series"] == 20
    assert trained["classes"] == [1, 2]
    assert trained["epochs"] == 40
    assert trained["validation_macro_f1"] is None
    assert not Path("m.partial").exists()

    code, out, err = call("evaluate", "m", "Tone", "--json")
    assert (code, err) == (0, "")
    scores = json.loads(out)
    assert scores["series"] == 10
    assert scores["seen_in_training"] == 0
    assert scores["classes"] == [1, 2]
    low, high = scores["macro_f1_interval"]
    assert low <= scores["macro_f1"] <= high
    assert np.array(scores["confusion"]).sum() == 10

    code, out, err = call("predict", "m", "Tone", "--json")
    assert (code, err) == (0, "")
    predictions = json.loads(out)["predictions"]
    true = [int(line.split("\t")[0]) for line in (home / "Tone_TEST.tsv").read_text().splitlines()]
    right = [row["label"] == label for row, label in zip(predictions, true, strict=True)]
    assert sum(right) / 10 == scores["accuracy"]


def test_text_for_people(call: Call, home: Path) -> None:
    code, out, err = call("train", "Tone", "--out", "m", "--epochs", 2, "--validation", 0.3)
    assert (code, err) == (0, ""), "no progress in a pipe"
    assert out.startswith("m: 20 series of 2 classes, ")
    assert "validation macro F1 of the best epoch: " in out
    code, out, err = call("train", "Tone", "--out", "m", "--epochs", 30, "--patience", 1)
    assert "stopped early: no validation score in 1 epochs above epoch" in out

    code, out, err = call("evaluate", home / "model", "Tone")
    assert (code, err) == (0, "")
    assert out.startswith("macro F1 ")
    assert "accuracy " in out
    assert "true, by predicted:" in out
    assert "warning" not in out


def test_predict_writes_a_table(call: Call, home: Path) -> None:
    code, out, err = call("predict", home / "model", "Tone")
    assert (code, err) == (0, "")
    rows = list(csv.DictReader(out.splitlines()))
    assert len(rows) == 10
    assert list(rows[0]) == ["name", "label", "probability of 1", "probability of 2"]
    assert call("predict", home / "model", "Tone", "--out", "p.csv") == (0, "", "")
    assert Path("p.csv").read_text() == out


def test_predict_goes_through_a_large_array_piece_by_piece(
    call: Call, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = np.stack([x for _, x in series(10)])
    np.save("x.npy", X)
    whole = json.loads(call("predict", home / "model", "x.npy", "--json")[1])
    monkeypatch.setattr("lagformer.data.readers.PIECE", 4)
    assert call("predict", home / "model", "x.npy", "--out", "p.csv", "--json")[2] == ""
    rows = list(csv.DictReader(Path("p.csv").read_text().splitlines()))
    assert [row["name"] for row in rows] == [str(i) for i in range(10)]
    assert [int(row["label"]) for row in rows] == [row["label"] for row in whole["predictions"]]
    X[9, 3] = np.inf
    np.save("x.npy", X)
    code, _, err = call("predict", home / "model", "x.npy", "--out", "q.csv")
    assert (code, err.count("\n")) == (2, 1)
    assert "x.npy, counted from series 8: Input X contains inf" in err
    assert sorted(p.name for p in Path().iterdir()) == ["p.csv", "x.npy"], "no half a table"


def test_splits_and_files(call: Call, home: Path) -> None:
    def labels(data: object) -> list[int]:
        out = call("predict", home / "model", data, "--json")[1]
        return [row["label"] for row in json.loads(out)["predictions"]]

    assert len(labels("Tone:train")) == 20
    assert labels("Tone") == labels("Tone:test") == labels(home / "Tone_TEST.tsv")
    for name in ("12:30.tsv", "Tone:train.tsv", r"C:\data\x.tsv"):
        shutil.copy(home / "Tone_TEST.tsv", name)
        assert labels(name) == labels("Tone:test"), "a colon does not make a name of a file"
    Path("Tone:test").mkdir()
    refused(call("predict", home / "model", "Tone:test"), "Tone:test: no .wav or .flac files")


def test_scan(call: Call, home: Path) -> None:
    code, out, err = call("scan", home / "model", home / "recording.csv", "--json", "--hop", 15)
    assert (code, err) == (0, "")
    found = [json.loads(line) for line in out.splitlines()]
    assert [row["start"] for row in found] == list(range(0, 300 - 30 + 1, 15))
    assert found[0].keys() == {"start", "time", "class", "probability"}
    assert found[0]["time"] is None
    code, out, err = call("scan", home / "model", home / "recording.wav", "--plot", "t.png")
    assert (code, err) == (0, "")
    assert len(out.splitlines()) == 10
    assert "0.300 s" in out
    assert Path("t.png").read_bytes().startswith(b"\x89PNG")


def test_export(call: Call, home: Path) -> None:
    code, out, err = call("export", home / "model", "--out", "m.pt2", "--check", "Tone", "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert result["difference"] < 1e-5
    assert result | {"difference": 0} == {"file": "m.pt2", "series": ["batch", 1, 30],
        "classes": [1, 2], "checked": 15, "difference": 0}  # fmt: skip
    assert Path("m.pt2").exists()
    refused(call("export", home / "model", "--out", "m.pb"), "m.pb must end in .onnx or .pt2")
    refused(call("export", "nowhere", "--out", "m.pt2"), "nowhere is no saved model")
    refused(
        call("export", home / "model", "--out", "n.pt2", "--check", "Tune"), "Did you mean Tone"
    )
    refused(call("export", home / "model", "--out", "no/m.pt2"), "no/m.pt2")
    assert not Path("n.pt2").exists()


def test_scan_of_standard_input_is_live(home: Path) -> None:
    """The first window is answered while the pipe is still open."""
    command = [*RUN, "scan", str(home / "model"), "-", "--json"]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=buffered
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        hung = threading.Timer(300, process.kill)
        hung.start()
        process.stdin.write("0.5\n" * 31)
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["start"] == 0
        process.send_signal(signal.SIGINT)  # the usual end
        assert process.communicate(timeout=300) == ("", "")
        hung.cancel()
    assert process.returncode == 130


def test_a_reader_that_leaves_is_no_error(home: Path) -> None:
    command = [*RUN, "scan", str(home / "model"), str(home / "recording.csv"), "--hop", "1"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


def test_labels_of_columns_and_missing_values(call: Call) -> None:
    lines = ["kind,a,b,c,d"]
    lines += [f"{'on' if i % 2 else 'off'},{i % 2},1,{'' if i == 3 else 2},{i}" for i in range(12)]
    Path("d.csv").write_text("\n".join(lines))
    for column in ("kind", "0"):
        for missing in ("mask", "interpolate"):
            code, out, err = call("train", "d.csv", "--out", "m", "--epochs", 1, "--label", column,
                                  "--missing", missing, "--json")  # fmt: skip
            assert (code, err) == (0, "")
            assert json.loads(out)["classes"] == ["off", "on"]
    refused(
        call("train", "d.csv", "--out", "m", "--label", "kind", "--missing", "error"),
        "Input X contains NaN: 1 value(s)",
    )
    code, out, _ = call("predict", "m", "d.csv", "--label", "kind", "--json")
    assert {row["label"] for row in json.loads(out)["predictions"]} <= {"off", "on"}


def test_imbalance_normalisation_and_seeds(call: Call) -> None:
    def weights(*options: object) -> bytes:
        assert call("train", "Tone", "--out", "m", "--epochs", 1, *options)[0] == 0
        return Path("m/model.safetensors").read_bytes()

    plain = weights()
    assert weights() == plain
    assert weights("--seed", 1) != plain
    assert weights("--normalize") != plain
    assert weights("--no-shift") != plain
    assert weights("--preset", "olympiad") != plain
    assert weights("--class-weight", "balanced") == plain, "the classes are balanced"


# -------------------------------------------------------------------------------- the honest score


def test_the_training_set_is_no_benchmark(call: Call, home: Path) -> None:
    for data in ("Tone:train", home / "Tone_TRAIN.tsv"):
        refused(call("evaluate", home / "model", data), "is what the model was trained on, all 20")


def test_a_test_series_known_from_training_is_counted(call: Call, home: Path) -> None:
    mixed = (home / "Tone_TEST.tsv").read_text()
    mixed += (home / "Tone_TRAIN.tsv").read_text().splitlines()[3] + "\n"
    Path("mixed.tsv").write_text(mixed)
    assert json.loads(call("evaluate", home / "model", "mixed.tsv", "--json")[1])[
        "seen_in_training"
    ] == 1  # fmt: skip
    assert (
        "warning: 1 of 11 series were in training too"
        in (call("evaluate", home / "model", "mixed.tsv")[1])
    )


def test_a_class_the_model_does_not_know_counts_as_wrong(call: Call, home: Path) -> None:
    write_tsv(Path("new.tsv"), [(7, x) for _, x in series(4)])
    result = json.loads(call("evaluate", home / "model", "new.tsv", "--json")[1])
    assert result["accuracy"] == 0
    assert 7 in result["classes"]


# ---------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("one-class.tsv", "1\t0.5\t0.1\n1\t0.2\t0.3\n", "at least 2 classes"),
        ("malformed.tsv", "1\t0.5\n2\tx\n", "malformed.tsv, line 2"),
        ("infinite.tsv", "1\t0.5\t1\n2\tinf\t1\n", "inf"),
        ("no-label.csv", "a,b\n1,2\n3,4\n", "requires y"),
        ("empty.tsv", "", "empty.tsv"),
        ("unknown.xyz", "1", "unknown suffix '.xyz'"),
        ("torn.npz", "PK\x03\x04", "torn.npz"),
    ],
)
def test_bad_training_files(name: str, text: str, message: str, call: Call) -> None:
    Path(name).write_text(text)
    refused(call("train", name, "--out", "m", "--epochs", 1), message)
    assert not Path("m").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["Tune", "--out", "m"], "Unknown data set 'Tune'. Did you mean Tone?"),
        (["Tone:valid", "--out", "m"], "write Tone:train or Tone:test"),
        (["none/x.tsv", "--out", "m"], "none/x.tsv"),
        (["Tone"], "Missing option '--out'"),
        (["Tone", "--out", "m", "--epochs", "0"], "epochs must be an integer ≥ 1, got 0"),
        (["Tone", "--out", "m", "--epochs", "x"], "--epochs"),
        (["Tone", "--out", "m", "--batch-size", "0"], "batch_size must be an integer ≥ 1"),
        (["Tone", "--out", "m", "--learning-rate", "nan"], "learning_rate must be positive"),
        (["Tone", "--out", "m", "--validation", "1"], "validation_fraction must lie in [0, 1)"),
        (["Tone", "--out", "m", "--patience", "0"], "patience must be None or an integer"),
        (["Tone", "--out", "m", "--preset", "gold"], "unknown preset 'gold'"),
        (["Tone", "--out", "m", "--seed", "-1"], "random_state must be an integer ≥ 0"),
        (["Tone", "--out", "m", "--device", "tpu9"], "device 'tpu9' is not available"),
        (["Tone", "--out", "m", "--missing", "drop"], "--missing"),
        (["Tone", "--out", "m", "--label", "x"], "--label is for .csv and .parquet"),
        (["Tone", "--out", "file"], "is a file"),
        (["Tone", "--out", "folder"], "holds mine.txt, which is no model"),
    ],
    ids=str,
)
def test_bad_options_of_train(arguments: list[str], message: str, call: Call) -> None:
    Path("file").write_text("mine")
    Path("folder").mkdir()
    Path("folder/mine.txt").write_text("mine")
    refused(call("train", *arguments), message)
    assert Path("folder/mine.txt").read_text() == "mine"
    assert Path("file").read_text() == "mine"


def test_channels_and_time_swapped(call: Call) -> None:
    np.savez("swapped.npz", X=RNG.standard_normal((6, 50, 2)), y=np.arange(6) % 2)
    refused(call("train", "swapped.npz", "--out", "m"), "swapped.npz")
    refused(call("train", "swapped.npz", "--out", "m"), "channels and time swapped?")


def test_data_that_do_not_fit_the_model(call: Call, home: Path) -> None:
    model = home / "model"
    np.savez("two.npz", X=RNG.standard_normal((4, 2, 30)), y=np.arange(4) % 2)
    refused(call("predict", model, "two.npz"), "X has 2 channel(s), but the model was fitted on 1")
    np.savez("text.npz", X=RNG.standard_normal((4, 30)), y=np.array(["a", "b"] * 2))
    refused(call("evaluate", model, "text.npz"), "like 'a', the model's like 1")
    np.savez("bytes.npz", X=RNG.standard_normal((4, 30)), y=np.array([b"a", b"b"] * 2))
    refused(call("evaluate", model, "bytes.npz"), "like b'a', the model's like 1")
    refused(call("train", "bytes.npz", "--out", "m"), "labels are bytes; decode them")
    Path("bare.csv").write_text("a,b\n1,2\n3,4\n")
    refused(call("evaluate", model, "bare.csv"), "bare.csv holds no labels")
    np.savez("continuous.npz", X=RNG.standard_normal((4, 30)), y=np.arange(4) / 2)
    refused(call("train", "continuous.npz", "--out", "m"), "Unknown label type: continuous")
    np.savez("far.npz", X=RNG.standard_normal((4, 30)) * 1e300, y=np.arange(4) % 2)
    refused(call("predict", model, "far.npz"), "no finite score, the first is series 0")
    np.savez("other.npz", X=RNG.standard_normal((4, 17)), y=1 + np.arange(4) % 2)
    assert call("evaluate", model, "other.npz")[0] == 0, "another length works"


@pytest.mark.parametrize("command", ["evaluate", "predict", "scan"])
def test_bad_models(command: str, call: Call, home: Path) -> None:
    data = home / "recording.csv" if command == "scan" else "Tone"
    refused(call(command, "nowhere", data), "nowhere is no saved model")
    for name, change, message in (
        ("truncated", lambda b: b[:-1], "damaged"),
        ("foreign", lambda b: b"\x80\x04K\x01.", "damaged"),
        ("flipped", lambda b: b[:-5] + bytes([b[-5] ^ 1]) + b[-4:], "does not match its checksum"),
    ):
        shutil.copytree(home / "model", name)
        path = Path(name) / "model.safetensors"
        path.write_bytes(change(path.read_bytes()))
        refused(call(command, name, data), f"{name} is damaged")
        refused(call(command, name, data), message)
    shutil.copytree(home / "model", "newer")
    config = json.loads(Path("newer/config.json").read_text())
    Path("newer/config.json").write_text(json.dumps(config | {"format": 99}))
    refused(call(command, "newer", data), "upgrade lagformer")


@pytest.mark.parametrize(
    ("recording", "options", "message"),
    [
        ("short.csv", [], "3 samples, fewer than one window of 30"),
        ("hole.csv", [], "hole.csv, line 3"),
        ("two.csv", [], "2 channel(s)"),
        ("none.csv", [], "none.csv"),
        ("short.tsv", [], "windows are read from"),
        ("Tone", [], "'Tone' is no recording: give a .wav, .flac or .csv file or -"),
        ("Tone:test", [], "'Tone:test' is no recording"),
        ("long.csv", ["--window", "0"], "window and hop must be at least 1"),
        ("long.csv", ["--hop", "-1"], "window and hop must be at least 1"),
        ("long.csv", ["--rate", "0"], "rate must be positive"),
    ],
)
def test_bad_recordings(
    recording: str, options: list[str], message: str, call: Call, home: Path
) -> None:
    for name, text in (
        ("short.csv", "x\n1\n2\n3\n"),
        ("short.tsv", "1\n"),
        ("hole.csv", "x\n1\n\n" + "nan\n" + "1\n" * 40),
        ("two.csv", "a,b\n" + "1,2\n" * 40),
        ("long.csv", "x\n" + "1.5\n" * 40),
    ):
        Path(name).write_text(text)
    if recording == "hole.csv":
        message = "hole.csv, line 4"
    refused(call("scan", home / "model", recording, *options), message)


def test_a_plot_of_an_unknown_format(call: Call, home: Path) -> None:
    code, _, err = call("scan", home / "model", home / "recording.csv", "--plot", "t.docx")
    assert code == 2
    assert err.count("\n") == 1
    assert "'docx' is not supported" in err


# -------------------------------------------------------------------------------------------- death


@pytest.mark.slow
def test_kill_while_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: Path) -> None:
    """Killed again and again, the same command ends with the same model, bit for bit."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    server = multiprocessing.get_context("forkserver")  # which has imported everything
    server.set_forkserver_preload(["lagformer.classifier", "lagformer.cli"])

    def train(out: Path, seconds: float | None = None) -> int:
        options = ["--epochs", "20", "--validation", "0.2", "--json"]
        command = ["train", str(home / "Tone_TRAIN.tsv"), "--out", str(out), *options]
        monkeypatch.setattr(sys, "argv", ["lagformer", *command])
        process = server.Process(target=cli.main)
        process.start()
        process.join(seconds)
        process.kill()
        process.join()
        assert process.exitcode is not None
        return process.exitcode

    assert train(tmp_path / "first") == 0  # starts the server
    began = time.monotonic()
    assert train(tmp_path / "whole") == 0
    duration = time.monotonic() - began
    expected = (tmp_path / "whole" / "model.safetensors").read_bytes()
    model, chance, kills = tmp_path / "model", random.Random(0), 0
    while kills < int(os.environ.get("LAGFORMER_KILLS", "5")):
        kills += train(model, chance.random() * duration / 2) == -signal.SIGKILL
        if model.exists():  # then it is whole
            LagformerClassifier.load(model)
            assert (model / "model.safetensors").read_bytes() == expected
            shutil.rmtree(model)
    assert train(model) == 0
    assert (model / "model.safetensors").read_bytes() == expected
    assert not (tmp_path / "model.partial").exists()


@pytest.mark.slow
def test_kill_while_scanning(tmp_path: Path, home: Path) -> None:
    """What is printed up to the kill is a beginning of what the whole scan prints."""
    command = [
        *RUN,
        "scan",
        str(home / "model"),
        str(home / "recording.csv"),
        "--json",
        "--hop",
        "1",
    ]
    whole = subprocess.run(command, capture_output=True, check=True).stdout
    chance = random.Random(0)
    for _ in range(int(os.environ.get("LAGFORMER_KILLS", "2"))):
        with (tmp_path / "out").open("wb") as file:
            process = subprocess.Popen(command, stdout=file)
            while (tmp_path / "out").stat().st_size == 0:
                time.sleep(0.001)
            time.sleep(chance.random() * 0.01)
            process.kill()
            process.wait()
        part = (tmp_path / "out").read_bytes()
        assert whole.startswith(part)
        assert part.endswith(b"\n")


def test_another_configuration_does_not_resume(call: Call, home: Path) -> None:
    Path("m.partial").mkdir()
    model = LagformerClassifier(max_epochs=2, random_state=0, checkpoint_dir="m.partial")
    model.fit(list(np.zeros((4, 5)) + np.arange(5)), [0, 1, 0, 1])
    before = Path("m.partial/checkpoint.safetensors").read_bytes()
    refused(call("train", "Tone", "--out", "m"), "belongs to another run")
    assert Path("m.partial/checkpoint.safetensors").read_bytes() == before


def test_a_model_is_trained_by_one_process_at_a_time(call: Call) -> None:
    with alone_in(Path("m.partial").absolute()):
        refused(call("train", "Tone", "--out", "m", "--epochs", 1), "m.partial is in use by anoth")
    assert call("train", "Tone", "--out", "m", "--epochs", 1)[0] == 0
    refused(call("train", "Tone", "--out", "n", "--epochs", 0), "epochs must be")
    assert not Path("n.partial").exists(), "nothing is left of a training that did not begin"
