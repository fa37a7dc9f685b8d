"""`lagformer bench`: arguments reach the script, and what is wrong is one line."""

import csv
import subprocess
import sys


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from lagformer.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)


def test_unknown_section_is_one_line_and_writes_nothing(tmp_path):
    done = run("bench", "attention", "--sections", "nothing", "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert "unknown section nothing; known: relative" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_unknown_benchmark_and_device():
    assert run("bench", "everything").returncode == 2
    assert run("bench", "attention", "--device", "abacus").returncode == 2


def test_a_section_writes_its_rows(tmp_path):
    done = run("bench", "attention", "--sections", "limits", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    with (tmp_path / "attention.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["path"] for row in rows} == {"GEMM 1024", "copy 64 MiB", "plain", "block"}
    assert all(float(row["value"]) > 0 for row in rows)
