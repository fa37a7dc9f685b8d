"""A data set read in pieces is the data set, and memory holds a piece."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from lagformer.data import readers
from lagformer.data.readers import iter_dataset, read_dataset

X = np.random.default_rng(0).standard_normal((10, 2, 7))


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "PIECE", 3)


@pytest.mark.parametrize(
    ("array", "pieces"),
    [
        (X, [3, 3, 3, 1]),
        (np.asfortranarray(X), [3, 3, 3, 1]),
        (X[:9, 0].astype(np.float32), [3, 3, 3]),
        (X[0, 0], [1]),
    ],
    ids=["channels", "fortran", "float32", "one series"],
)
def test_pieces_are_the_whole(array: np.ndarray, pieces: list[int], tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", array)
    whole = read_dataset(tmp_path / "x.npy")
    found = list(iter_dataset(tmp_path / "x.npy"))
    assert [len(piece) for piece in found] == pieces
    assert np.array_equal(np.concatenate([piece.values for piece in found]), whole.values)
    assert np.concatenate([piece.mask for piece in found]).all()
    assert sum((piece.names for piece in found), ()) == whole.names
    assert {piece.source for piece in found} == {whole.source}


def test_missing_values_are_treated_alike(tmp_path: Path) -> None:
    holes = X.copy()
    holes[4, :, 5:] = np.nan  # padding
    holes[8, 1, 2] = np.nan
    np.save(tmp_path / "x.npy", holes)
    whole = read_dataset(tmp_path / "x.npy", missing="interpolate")
    found = list(iter_dataset(tmp_path / "x.npy", missing="interpolate"))
    assert np.array_equal(np.concatenate([piece.values for piece in found]), whole.values)
    masked = [piece.mask for piece in iter_dataset(tmp_path / "x.npy")]
    assert np.array_equal(np.concatenate(masked), read_dataset(tmp_path / "x.npy").mask)


def test_other_formats_are_one_piece(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", X=X, y=np.arange(10))
    (piece,) = iter_dataset(tmp_path / "x.npz")
    assert np.array_equal(piece.values, X)
    assert piece.labels is not None


def test_errors_are_one_line_and_count_from_the_piece(tmp_path: Path) -> None:
    bad = X.copy()
    bad[7, 0, 3] = np.inf
    np.save(tmp_path / "x.npy", bad)
    pieces = iter_dataset(tmp_path / "x.npy")
    assert len(next(pieces)) == len(next(pieces)) == 3
    with pytest.raises(ValueError, match=r"x\.npy, counted from series 6: .* in series 1, channel"):
        next(pieces)
    np.save(tmp_path / "empty.npy", X[:0])
    torn = (tmp_path / "x.npy").read_bytes()[:-1]
    (tmp_path / "torn.npy").write_bytes(torn)
    for name, options, message in (
        ("empty.npy", {}, r"empty\.npy: .*0 sample"),
        ("torn.npy", {}, r"torn\.npy: not readable"),
        ("none.npy", {}, r"none\.npy: no such file"),
        ("x.npy", {"label": "a"}, r"x\.npy: label= is for"),
        ("x.xyz", {}, r"x\.xyz: unknown suffix"),
    ):
        with pytest.raises(ValueError, match=message) as raised:
            next(iter_dataset(tmp_path / name, **options))
        assert "\n" not in str(raised.value)


def test_an_error_of_the_caller_is_the_callers(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)

    def use(_: object) -> None:
        raise KeyError

    with pytest.raises(KeyError):
        list(map(use, iter_dataset(tmp_path / "x.npy")))


def test_memory_holds_a_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "PIECE", 1000)
    peaks = []
    for n in (20_000, 200_000):
        np.save(tmp_path / "x.npy", np.zeros((n, 4), np.float32))
        tracemalloc.start()
        assert sum(map(len, iter_dataset(tmp_path / "x.npy"))) == n
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 100_000, "half a byte a series more, of which each takes 32"
