"""Windows over one long recording: the same as slicing it, in bounded memory."""

import tracemalloc

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from lagformer.data import iter_windows

X = np.random.default_rng(0).integers(-100, 100, size=(2, 103)) / 128


def lines(samples, header=None):
    return ([header] if header else []) + [",".join(map(repr, row)) for row in samples.T.tolist()]


def slices(samples, window, hop):
    return [
        (start, samples[:, start : start + window].tolist())
        for start in range(0, samples.shape[1] - window + 1, hop)
    ]


@given(window=st.integers(1, 103), hop=st.integers(1, 120))
def test_windows_are_slices(window, hop):
    found = [(start, x.tolist()) for start, x in iter_windows(lines(X), window, hop)]
    assert found == slices(X, window, hop)


@pytest.mark.parametrize("name", ["x.wav", "x.flac", "x.csv"])
@pytest.mark.parametrize(("window", "hop"), [(10, 3), (10, 10), (7, 25), (103, 1)])
def test_files(tmp_path, name, window, hop):
    if name == "x.csv":
        (tmp_path / name).write_text("\n".join(lines(X)))
    else:
        soundfile.write(tmp_path / name, X.T, 8000)
    found = [(start, x.tolist()) for start, x in iter_windows(tmp_path / name, window, hop)]
    assert found == slices(X, window, hop)


def test_hop_is_the_window_unless_given():
    assert [start for start, _ in iter_windows(lines(X), 25)] == [0, 25, 50, 75]


@pytest.mark.parametrize(
    ("header", "extra"), [("time,x,y", "0"), (",x,y", "0"), ("x,y,label", None), ("a,b", None)]
)
def test_time_index_and_label_are_no_channels(header, extra):
    rows = lines(X)
    if extra:
        rows = [f"{t},{row}" for t, row in enumerate(rows)]
    elif "label" in header:
        rows = [f"{row},ok" for row in rows]
    found = [x for _, x in iter_windows([header, *rows], 50)]
    np.testing.assert_array_equal(found, [X[:, :50], X[:, 50:100]])


def test_standard_input(monkeypatch, tmp_path):
    (tmp_path / "pipe").write_text("\ufeff1\n2\n\n# c\n3\n4\n")
    with (tmp_path / "pipe").open() as pipe:
        monkeypatch.setattr("sys.stdin", pipe)
        assert [x.tolist() for _, x in iter_windows("-", 2)] == [[[1, 2]], [[3, 4]]]


def test_a_window_comes_as_soon_as_its_last_line_is_there():
    fed = 0

    def feed():
        nonlocal fed
        for line in lines(X):
            fed += 1
            yield line

    for start, _ in iter_windows(feed(), 10, 4):
        assert fed == start + 10


def test_a_window_may_be_changed_in_place():
    found = []
    for _, x in iter_windows(lines(X), 10, 3):
        found.append(x.copy())
        x[:] = 0
    np.testing.assert_array_equal(found[1], X[:, 3:13])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["1", "2"], "lines: 2 samples, fewer than one window of 3"),
        ([], "lines: no rows"),
        (["x"], "lines, line 1: no samples"),
        (["label", "1"], "lines, line 1: no samples"),
        (["1", "2", "x"], "lines, line 3: value 1 is not a number"),
        (["1", "?", "3"], "lines, line 2: a missing or infinite value"),
        (["1", "2", "inf"], "lines, line 3: value 1 is infinite"),
        (["1,2", "3"], r"lines, line 2: 1 cell\(s\), but the first row has 2"),
    ],
)
def test_refused_lines(rows, message):
    with pytest.raises(ValueError, match=message):
        list(iter_windows(rows, 3))


def test_refused_files(tmp_path):
    with pytest.raises(ValueError, match=r"x\.npy: windows are read from"):
        list(iter_windows(tmp_path / "x.npy", 3))
    for name in ("x.wav", "x.csv"):
        with pytest.raises(ValueError, match=name):
            list(iter_windows(tmp_path / name, 3))
        (tmp_path / name).write_bytes(b"\xff\xfe")
        with pytest.raises(ValueError, match=name):
            list(iter_windows(tmp_path / name, 3))
    with pytest.raises(ValueError, match="window and hop must be at least 1"):
        list(iter_windows(["1"], 0))
    soundfile.write(tmp_path / "n.wav", [0.0, np.nan, 0], 8000, subtype="FLOAT")
    with pytest.raises(ValueError, match=r"n\.wav: a missing or infinite value"):
        list(iter_windows(tmp_path / "n.wav", 3))


def test_memory_does_not_grow_with_the_file(tmp_path):
    soundfile.write(tmp_path / "x.wav", np.zeros(4_000_000, dtype=np.int16), 8000)
    tracemalloc.start()
    count = sum(1 for _ in iter_windows(tmp_path / "x.wav", 1000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 4000
    assert peak < 1_000_000  # the samples alone would take 32 MB
