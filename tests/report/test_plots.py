"""`write_figures` and how figures are saved."""

import functools
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import pytest

from lagformer.report import plots, write_figures
from lagformer.report.style import new_figure, save

NAMES = ["elu", "cost", "rank", "taylor", "variance", "lags"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short lengths and training: what is measured and learned is tested elsewhere."""
    short = functools.partial(plots.measure, (64, 128, 256), seconds=0)
    monkeypatch.setattr(plots, "measure", short)
    monkeypatch.setattr(plots, "from_clicks", functools.partial(plots.from_clicks, epochs=1))


@pytest.mark.usefixtures("quick")
def test_every_figure_is_written(tmp_path: Path) -> None:
    paths = write_figures(tmp_path / "a" / "b")
    assert paths == [tmp_path / "a" / "b" / f"{name}.png" for name in NAMES]
    assert sorted(p.name for p in (tmp_path / "a" / "b").iterdir()) == sorted(p.name for p in paths)
    for path in paths:
        height, width, _ = matplotlib.image.imread(path).shape
        assert width == 980  # 7 inches
        assert height > 400


@pytest.mark.usefixtures("quick")
def test_same_seed_same_figures_and_another_seed_others(tmp_path: Path) -> None:
    first, again, other = (
        {p.stem: p.read_bytes() for p in write_figures(tmp_path / str(i), seed=seed)}
        for i, seed in enumerate((0, 0, 1))
    )
    # The Taylor map's weights depend on the scores alone.
    unlike = {name for name in NAMES if first[name] != again[name]}
    assert unlike <= {"cost"}  # measured times
    assert {name for name in NAMES if first[name] == other[name]} <= {"elu", "cost", "taylor"}


def test_a_folder_under_a_file_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "figures"):
        with pytest.raises(ValueError, match=r"^cannot write figures to [^\n]*; choose another"):
            write_figures(folder)
    code = "from lagformer.cli import main; main()"
    command = [sys.executable, "-c", code, "figures", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: cannot write figures to {folder}")
    assert done.stderr.count("\n") == 1


def test_a_read_only_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # By a stub: root may write to any folder.
    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(plots.tempfile, "TemporaryFile", refuse)
    with pytest.raises(ValueError, match="Permission denied; choose another folder"):
        write_figures(tmp_path)


def test_a_run_without_a_model_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no finished model"):
        write_figures(tmp_path / "figures", run=tmp_path)
    assert list((tmp_path / "figures").iterdir()) == []


def test_saving_replaces_a_figure_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    path.write_text("old")
    figure, (panel,) = new_figure("Title", "Caption.")
    panel.plot([0, 1])
    save(figure, path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert list(tmp_path.iterdir()) == [path]


def test_pyplot_is_not_imported() -> None:
    code = "import sys, lagformer.report; assert 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
