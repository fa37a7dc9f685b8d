"""The command line: what it prints, and that every error is one line and exit code 2."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lagformer import experiment
from lagformer.training.queue import Task, run_queue

from .conftest import Call

RUN = [sys.executable, "-c", "from lagformer.cli import main; main()"]
COMMANDS = (
    "forda",
    "train",
    "evaluate",
    "predict",
    "scan",
    "report",
    "export",
    "audit",
    "figures",
    "bench",
)


@pytest.fixture(autouse=True)
def _data(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny FordA and FordB, training in this process, an empty working folder."""
    folder = tmp_path_factory.mktemp("ucr")
    rng = np.random.default_rng(0)
    for name in ("FordA", "FordB"):
        for part, n in (("TRAIN", 20), ("TEST", 10)):
            lines = []
            for i in range(n):
                values = np.sin((0.5 + i % 2) * np.arange(30) + 6 * rng.random())
                lines.append("\t".join([str(2 * (i % 2) - 1), *map(repr, map(float, values))]))
            (folder / f"{name}_{part}.tsv").write_text("\n".join(lines))
    monkeypatch.setenv("LAGFORMER_DATA", str(folder))
    monkeypatch.chdir(tmp_path_factory.mktemp("work"))

    def run_here(
        tasks: list[Task], *, jobs: int, on_epoch: Callable[..., None]
    ) -> dict[str, object]:
        return {
            t.name: t.function(*t.arguments, lambda record, name=t.name: on_epoch(name, record))
            for t in tasks
        }

    monkeypatch.setattr(experiment, "run_queue", run_here)


def is_one_line(err: str) -> bool:
    return err.startswith("error: ") and err.count("\n") == 1 and "Traceback" not in err


# ----------------------------------------------------------------------------------------- results


def test_forda_prints_the_table_the_warning_and_the_folder(call: Call) -> None:
    code, out, err = call("forda", "--epochs", 1, "--seeds", "0,3", "--x-best", 0.98, "--ablations")
    assert (code, err) == (0, "")
    for text in (
        "FordA, raw: macro F1",
        "FordA, dithered: macro F1",
        "random",
        "logistic-log-spectrum",
        "half-patches",
        "0.942/0.944",
        "published",
        "accuracy",
        "mark",
        "by predicted [[",
        "lagformer, 2 seeds: test macro F1",
        "lagformer-ensemble",
        "ensemble: accuracy",
        "warning: raw FordA leaks its labels",
        "run folder: runs/forda-olympiad-raw+dithered-seeds0+3-1epochs-ablations",
    ):
        assert text in out, text
    assert max(map(len, out.splitlines()[:12])) <= 80
    assert Path("runs/forda-olympiad-raw+dithered-seeds0+3-1epochs-ablations/forda.csv").exists()


def test_forda_takes_the_peers_that_are_asked_for(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, ...]] = []

    def noted(*_: object, peer_seeds: tuple[int, ...], **__: object) -> dict[str, object]:
        asked.append(peer_seeds)
        return {}

    monkeypatch.setattr(experiment, "run_forda", noted)
    for options in ([], ["--peers"], ["--all-peer-seeds"]):
        assert call("forda", "--seeds", "3,4", "--json", *options)[0] == 0
    assert asked == [(), (3,), (3, 4)]


def test_forda_of_another_preset_stands_beside_no_published_score(call: Call) -> None:
    code, out, err = call("forda", "--preset", "base", "--data", "raw", "--epochs", 1)
    assert (code, err) == (0, "")
    assert "0.942" not in out
    assert "0.912/–" in out


def test_forda_json_is_the_result_alone(call: Call, tmp_path: Path) -> None:
    code, out, err = call("forda", "--data", "all", "--quick", "--json", "--out", tmp_path / "run")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert result == json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["settings"]["data"] == ["raw", "dithered", "fordb"]
    assert "not the result" in result["warnings"][0]


def test_quick_says_that_it_is_not_the_result(call: Call) -> None:
    code, out, _ = call("forda", "--data", "fordb", "--quick")
    assert code == 0
    assert "warning: a quick check of 3 epochs: these numbers are not the result" in out
    assert "published" not in out, "the published scores are for FordA alone"


def test_audit_of_a_name_and_of_a_file(call: Call) -> None:
    code, out, err = call("audit", "FordA", "--json")
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert report.keys() == {"dataset", "verdict", "findings"}
    assert report["findings"][0].keys() == {"check", "verdict", "score", "detail", "cure"}
    file = Path(os.environ["LAGFORMER_DATA"]) / "FordA_TRAIN.tsv"
    code, out, err = call("audit", file)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1].split(": ")[-1] in ("clean", "leak")


def test_audit_of_one_split(call: Call) -> None:
    """The report is that of the split's file, and says nothing of the other."""
    folder = Path(os.environ["LAGFORMER_DATA"])
    for split, file in (("train", "FordA_TRAIN.tsv"), ("test", "FordA_TEST.tsv")):
        code, out, err = call("audit", f"FordA:{split}", "--json")
        assert (code, err) == (0, "")
        assert out == call("audit", folder / file, "--json")[1]
        assert "across_splits" not in out
    assert "across_splits" in call("audit", "FordA", "--json")[1]


def test_help_does_not_wait_for_torch() -> None:
    code = (
        "import sys; sys.argv = ['lagformer', '--help']\n"
        "from lagformer.cli import main\n"
        "try: main()\n"
        "except SystemExit as exit_: assert not exit_.code\n"
        "slow = {'torch', 'numpy', 'sklearn', 'matplotlib', 'pandas'} & set(sys.modules)\n"
        "sys.exit(f'imported {slow}' if slow else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    for command in COMMANDS:
        assert command in result.stdout


def test_help_of_each_command(call: Call) -> None:
    for command in COMMANDS:
        code, out, err = call(command, "--help")
        assert (code, err) == (0, "")
        assert "Usage" in out


def test_no_command_prints_the_help(call: Call) -> None:
    code, out, err = call()
    assert code == 2
    assert "Usage" in out + err
    assert "error" not in err


# ------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["fordx"], "No such command 'fordx'"),
        (["forda", "--epoch"], "No such option"),
        (["forda", "--epochs", "many"], "--epochs"),
        (["forda", "--epochs", "-5"], "epochs must be an integer ≥ 1, got -5"),
        (["forda", "--epochs", "0", "--quick"], "epochs must be an integer ≥ 1, got 0"),
        (["forda", "--seeds", "0,x"], "seeds must be integers separated by commas, got '0,x'"),
        (["forda", "--seeds", "-1"], "seeds must lie in 0"),
        (["forda", "--seeds", ""], "seeds must be integers"),
        (["forda", "--data", "FordC"], "unknown data 'FordC'; known: raw, dithered, fordb"),
        (["forda", "--preset", "gold"], "unknown preset 'gold'; known presets: olympiad"),
        (["forda", "--preset", "base", "--ablations"], "vary the published recipe"),
        (["forda", "--x-best", "0.3"], "must lie in (0.5, 1], got 0.3"),
        (["audit"], "Missing argument 'DATA'"),
        (["audit", "FordC"], "Unknown data set 'FordC'. Did you mean"),
        (["audit", "nowhere/data.tsv"], "nowhere/data.tsv"),
        (["audit", "FordA:valid"], "names neither split: write FordA:train or FordA:test"),
        (["audit", "FordA:"], "names neither split: write FordA:train or FordA:test"),
        (["audit", "FordA:TRAIN"], "names neither split: write FordA:train or FordA:test"),
        (["audit", "FordC:train"], "Unknown data set 'FordC'. Did you mean"),
        (["audit", ":train"], "Unknown data set ''"),
        (["audit", r"C:\data\x.tsv"], r"C:\data\x.tsv: no such file"),
        (["audit", "."], "."),
    ],
)
def test_errors_are_one_line(arguments: list[str], text: str, call: Call) -> None:
    code, out, err = call(*arguments)
    assert code == 2
    assert out == ""
    assert is_one_line(err), err
    assert text in err


def test_a_malformed_file_is_named_with_its_line(call: Call) -> None:
    Path("bad.tsv").write_text("1\t0.5\t0.5\n1\t0.5\tx\n")
    code, _, err = call("audit", "bad.tsv")
    assert code == 2
    assert is_one_line(err)
    assert "bad.tsv" in err
    assert "2" in err


def test_no_data_at_all_names_the_cure(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAGFORMER_DATA", "nowhere")
    code, _, err = call("forda")
    assert code == 2
    assert is_one_line(err)
    assert "LAGFORMER_DATA names 'nowhere'" in err


def test_foreign_folders_and_damaged_files_are_one_line(call: Call, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert call("forda", "--epochs", 1, "--out", run)[0] == 0
    code, out, err = call("forda", "--epochs", 2, "--out", run)
    assert (code, out) == (2, "")
    assert is_one_line(err)
    assert f"{run} holds a run with other settings" in err

    code, _, err = call("forda", "--epochs", 1, "--out", tmp_path)
    assert code == 2
    assert is_one_line(err)
    assert f"{tmp_path} holds other files and no run" in err

    home = run / "models" / "raw-seed0-test-lagformer"
    (home / "outcome.json").unlink()
    (home / "checkpoint.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0damaged")
    code, _, err = call("forda", "--epochs", 1, "--out", run)
    assert code == 2
    assert is_one_line(err)
    assert "checkpoint.safetensors is damaged" in err


def test_a_folder_that_is_a_file_and_one_that_cannot_be_written(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("mine")
    code, _, err = call("forda", "--out", tmp_path / "file")
    assert code == 2
    assert is_one_line(err)
    assert str(tmp_path / "file") in err

    def denied(*_: object, **__: object) -> None:  # a real chmod would not stop root
        raise PermissionError(13, "Permission denied", "shut/run")

    monkeypatch.setattr(Path, "mkdir", denied)
    code, _, err = call("forda", "--out", "shut/run")
    assert (code, err) == (2, "error: shut/run: Permission denied\n")


def test_no_process_is_one_line(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "run_queue", run_queue)
    code, _, err = call("forda", "--jobs", 0)
    assert (code, err) == (2, "error: jobs must be ≥ 1, got 0\n")


def test_an_interrupt_hints_at_resuming(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment, "run_queue", interrupted)
    code, out, err = call("forda", "--out", tmp_path / "run")
    assert (code, out) == (130, "")
    assert err == "error: interrupted; the same command again resumes what it was training\n"


@pytest.mark.slow
def test_ctrl_c_ends_everything_and_the_same_command_resumes(tmp_path: Path) -> None:
    command = [*RUN, "forda", "--data", "raw", "--epochs", "40", "--jobs", "2"]
    command += ["--out", str(tmp_path / "run"), "--json"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, text=True
    )
    while not list(tmp_path.rglob("checkpoint.safetensors")):
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process of the group
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert is_one_line(err), err
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["rows"]


def test_figures_of_a_folder_that_is_no_run(call: Call, tmp_path: Path) -> None:
    code, out, err = call("figures", tmp_path / "figures", "--run", tmp_path)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert not any(tmp_path.rglob("*.png"))
