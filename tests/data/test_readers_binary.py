"""Arrays, parquet and audio: exact values, and torn or lying files refused."""

import io
import pickle
import tracemalloc
import zipfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lagformer.data import read_dataset

X = np.random.default_rng(0).normal(size=(4, 2, 30)) / 10
Y = np.array(["b", "a", "B", "a"])
ARRAYS = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 4), st.integers(1, 2), st.integers(2, 6)),
    elements=st.floats(allow_nan=False, allow_infinity=False),
)


def same_bits(a, b):
    return a.shape == b.shape and a.tobytes() == b.tobytes()


@given(array=ARRAYS)
def test_npy_npz_and_parquet_are_exact(tmp_path_factory, array):
    folder = tmp_path_factory.mktemp("exact")
    np.save(folder / "x.npy", array)
    assert same_bits(read_dataset(folder / "x.npy").values, array)
    np.save(folder / "f.npy", np.asfortranarray(array))
    assert same_bits(read_dataset(folder / "f.npy").values, array)
    np.savez_compressed(folder / "x.npz", X=array)
    assert same_bits(read_dataset(folder / "x.npz").values, array)
    channels = {f"c{c}": list(array[:, c]) for c in range(array.shape[1])}
    pq.write_table(pa.table(channels), folder / "x.parquet")
    assert same_bits(read_dataset(folder / "x.parquet").values, array)
    flat = {f"t{t}": array[:, 0, t] for t in range(array.shape[2])} | {"label": range(len(array))}
    pq.write_table(pa.table(flat), folder / "wide.parquet")
    assert same_bits(read_dataset(folder / "wide.parquet").values, array[:, :1].copy())


@pytest.mark.parametrize(
    ("array", "shape"),
    [
        (np.arange(6, dtype=np.int16), (1, 1, 6)),
        (np.ones((2, 3), dtype=np.float32), (2, 1, 3)),
        (np.ones((2, 4, 3), dtype=">f8"), (2, 4, 3)),
    ],
)
def test_npy_shapes_and_dtypes(tmp_path, array, shape):
    np.save(tmp_path / "x.npy", array)
    found = read_dataset(tmp_path / "x.npy")
    assert found.values.shape == shape
    assert found.values.dtype == np.dtype(float)
    np.testing.assert_array_equal(found.values.ravel(), array.ravel())


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (np.array([-1.0, 1, 2, 1]), np.array([-1, 1, 2, 1])),
        (np.array([0.5, 1, 2, 1]), np.array([0.5, 1, 2, 1])),
        (np.array([3, 1, 2, 1], dtype=np.uint8), np.array([3, 1, 2, 1], dtype=np.uint8)),
        (np.array([True, False, True, True]), np.array([True, False, True, True])),
        (Y, Y),
    ],
)
def test_npz_labels(tmp_path, labels, expected):
    np.savez(tmp_path / "x.npz", values=X, labels=labels)
    found = read_dataset(tmp_path / "x.npz").labels
    assert found.dtype == expected.dtype
    assert found.tolist() == expected.tolist()


def test_npz_mask_and_names(tmp_path):
    mask = np.ones((4, 30), dtype=bool)
    mask[1, 20:] = mask[2, 3] = False
    np.savez(tmp_path / "x.npz", X=X, y=Y, mask=mask, names=np.array(list("pqrs")))
    found = read_dataset(tmp_path / "x.npz")
    assert found.names == tuple("pqrs")
    np.testing.assert_array_equal(found.mask, mask)
    np.testing.assert_array_equal(found.values, np.where(mask[:, None], X, 0))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"X_train": X, "y_train": Y}, "no array named X or x or .*it holds X_train, y_train"),
        ({}, "it holds nothing"),
        ({"a\nb": X}, r"it holds a\?b\.$"),
        ({"X": X, "data": X}, "both X and data"),
        ({"X": X, "y": Y, "label": Y}, "both y and label"),
        ({"X": X, "y": Y[:3]}, r"inconsistent numbers of samples: \[4, 3\]"),
        ({"X": X, "mask": np.ones((4, 3), dtype=bool)}, "mask must be bool"),
        ({"X": X, "names": Y[:2]}, "4 series but 2 names"),
        ({"X": np.array([{}, 1])}, "never unpickled"),
        ({"X": np.full((2, 3), np.inf)}, "inf: 6 value"),
    ],
)
def test_npz_refused(tmp_path, arrays, message):
    path = tmp_path / "x.npz"
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=message) as caught:
        read_dataset(path)
    assert str(caught.value).startswith(str(path))


class Trap:
    """Pickles into a call that would leave a trace."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('a pickle ran')",))


@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
def test_pickles_never_run(tmp_path, name):
    (tmp_path / name).write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ValueError, match=name):
        read_dataset(tmp_path / name)
    np.save(tmp_path / "o.npy", np.array([Trap()]), allow_pickle=True)
    with pytest.raises(ValueError, match=r"o\.npy"):
        read_dataset(tmp_path / "o.npy")


def lying_npy(shape):
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": "<f8", "fortran_order": False, "shape": shape}
    )
    return buffer.getvalue() + bytes(80)


@pytest.mark.parametrize("shape", [(10**12,), (1, 10**9), (10**9, 10**9), (2**62, 4), (2, 3)])
def test_declared_sizes_allocate_nothing(tmp_path, shape):
    (tmp_path / "x.npy").write_bytes(lying_npy(shape))
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("X.npy", lying_npy(shape))
    tracemalloc.start()
    for name in ("x.npy", "x.npz"):
        with pytest.raises(ValueError, match=name):
            read_dataset(tmp_path / name)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1e6


def test_parquet_long(tmp_path):
    frame = pd.DataFrame(
        {
            "time": pd.to_datetime(["2024-01-02", "2024-01-01", "2024-01-01", "2024-01-02"]),
            "id": pd.Categorical(["q", "q", "p", "p"]),
            "u": [1.0, 2, 3, None],
            "v": [5, 6, 7, 8],
            "label": ["k", "k", "m", "m"],
        }
    )
    frame.to_parquet(tmp_path / "x.parquet")
    found = read_dataset(tmp_path / "x.parquet")
    assert found.names == ("q", "p")
    assert found.labels.tolist() == ["k", "m"]
    np.testing.assert_array_equal(found.mask, [[1, 1], [1, 0]])
    np.testing.assert_array_equal(found.values, [[[2, 1], [6, 5]], [[3, 0], [7, 0]]])


def test_parquet_lists_of_unequal_length(tmp_path):
    table = {
        "values": [[1.0, 2], [3.0, None, 5]],
        "class": pa.array(["a", "b"]).dictionary_encode(),
    }
    pq.write_table(pa.table(table), tmp_path / "x.parquet")
    found = read_dataset(tmp_path / "x.parquet")
    np.testing.assert_array_equal(found.values, [[[1, 2, 0]], [[3, 0, 5]]])
    np.testing.assert_array_equal(found.mask, [[1, 1, 0], [1, 0, 1]])
    assert found.labels.tolist() == ["a", "b"]
    nested = {"values": [[[1, 2], [3, 4]], [[5, 6], [7, 8]]], "id": [7, 8]}
    pq.write_table(pa.table(nested), tmp_path / "n.parquet")
    found = read_dataset(tmp_path / "n.parquet")
    np.testing.assert_array_equal(found.values, [[[1, 2], [3, 4]], [[5, 6], [7, 8]]])
    assert found.names == ("7", "8")


@pytest.mark.parametrize("index", [None, pd.Index([5, 6]), pd.Index([5, 6], name="index")])
def test_parquet_of_pandas_leaves_the_index_out(tmp_path, index):
    frame = pd.DataFrame({"0": [1.5, 2], "1": [3, 4.0], "target": [9, 8]}, index=index)
    frame.to_parquet(tmp_path / "x.parquet")
    found = read_dataset(tmp_path / "x.parquet")
    np.testing.assert_array_equal(found.values[:, 0], [[1.5, 3], [2, 4]])
    assert found.labels.tolist() == [9, 8]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"label": ["a", None], "t0": [1, 2]}, "y contains NaN or None: 1 label"),
        ({"label": [1, None], "t0": [1, 2]}, "y contains NaN or None: 1 label"),
        ({"label": [1, 2], "t0": [1, 2], "on": [True, False]}, "column 'on' has type bool"),
        ({"t0": [1, 2], "u": [[1], [2]]}, "columns of lists beside columns of single samples"),
        ({"u": [[1, 2]], "v": [[1]]}, "along dimension 1"),
        ({"id": [1, 1], "t": [0, 0], "v": [1, 2]}, "row 2: time 0 of series 1 is there twice"),
        ({"id": [1, 1], "t": [0, None], "v": [1, 2]}, "time column has missing values"),
        ({"id": [1, None], "t": [0, 1], "v": [1, 2]}, "row 2: the id is missing"),
        ({"id": [1, 1], "t": ["9", "10"], "v": [1, 2]}, "the time column is text"),
        ({"v": pa.array([], pa.float64())}, "no rows"),
    ],
)
def test_parquet_refused(tmp_path, table, message):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table(table), path)
    with pytest.raises(ValueError, match=message) as caught:
        read_dataset(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    ("subtype", "step"),
    [("DOUBLE", 0.0), ("FLOAT", 2.0**-24), ("PCM_16", 2.0**-15), ("PCM_24", 2.0**-23)],
)
def test_wav(tmp_path, subtype, step):
    path = tmp_path / "pump.wav"
    soundfile.write(path, X[0].T, 8000, subtype=subtype)
    found = read_dataset(path)
    assert found.values.shape == (1, 2, 30)
    assert found.names == ("pump",)
    assert found.labels is None
    assert np.abs(found.values[0] - X[0]).max() <= step


def test_wav_and_flac_of_integers_are_exact(tmp_path):
    samples = np.array([-(2**15), -1, 0, 1, 2**15 - 1], dtype=np.int16)
    for name in ("x.wav", "x.flac"):
        soundfile.write(tmp_path / name, samples, 8000)
        found = read_dataset(tmp_path / name)
        np.testing.assert_array_equal(found.values[0, 0] * 2**15, samples)


def test_an_odd_number_of_bytes_is_no_torn_file(tmp_path):
    soundfile.write(tmp_path / "x.wav", X[0, 0, :29], 8000, subtype="PCM_U8")
    assert read_dataset(tmp_path / "x.wav").values.shape == (1, 1, 29)


def test_a_streamed_wav_declares_no_size_and_is_read(tmp_path):
    buffer = io.BytesIO()
    soundfile.write(buffer, X[0].T, 8000, format="WAV")
    data = bytearray(buffer.getvalue())
    data[4:8] = data[40:44] = b"\xff\xff\xff\xff"
    (tmp_path / "x.wav").write_bytes(data)
    assert read_dataset(tmp_path / "x.wav").values.shape == (1, 2, 30)


def test_a_recording_longer_than_a_block_is_read_whole(tmp_path):
    long = np.random.default_rng(0).integers(-9, 9, size=(1 << 20) + 5).astype(np.int16)
    soundfile.write(tmp_path / "x.wav", long, 8000)
    np.testing.assert_array_equal(read_dataset(tmp_path / "x.wav").values[0, 0] * 2**15, long)


@pytest.mark.parametrize("sizes", [{}, {"bad": (2, 9)}])
def test_a_folder_of_class_folders(tmp_path, sizes):
    for label, files in {"bad": ["2.wav", "10.flac"], "Ok": ["1.wav"]}.items():
        (tmp_path / label).mkdir()
        for i, file in enumerate(files):
            soundfile.write(tmp_path / label / file, X[i, :, : 20 + i].T, 8000)
        (tmp_path / label / "notes.txt").write_text("x")
        (tmp_path / label / ".hidden.wav").write_text("x")
    (tmp_path / ".git").mkdir()
    found = read_dataset(tmp_path)
    assert found.names == ("Ok/1.wav", "bad/10.flac", "bad/2.wav")
    assert found.labels.tolist() == ["Ok", "bad", "bad"]
    assert found.lengths.tolist() == [20, 21, 20]


def test_a_folder_of_audio_files_has_no_labels(tmp_path):
    soundfile.write(tmp_path / "b.wav", X[0].T, 8000)
    soundfile.write(tmp_path / "a.wav", X[1].T, 8000)
    found = read_dataset(tmp_path)
    assert found.names == ("a.wav", "b.wav")
    assert found.labels is None


def test_folders_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no \.wav or \.flac files"):
        read_dataset(tmp_path)
    for label in ("1", "2"):
        (tmp_path / label).mkdir()
        soundfile.write(tmp_path / label / "x.wav", X[0].T, 8000)
    assert read_dataset(tmp_path).labels.tolist() == [1, 2]
    soundfile.write(tmp_path / "2" / "y.wav", X[0, 0], 8000)
    with pytest.raises(ValueError, match=r"y\.wav: 1 channel.* 8000 Hz, but .*x\.wav has 2"):
        read_dataset(tmp_path)
    soundfile.write(tmp_path / "2" / "y.wav", X[0].T, 16000)
    with pytest.raises(ValueError, match=r"y\.wav: 2 channel.* 16000 Hz, but .*at 8000 Hz"):
        read_dataset(tmp_path)
    (tmp_path / "2" / "y.wav").write_bytes(b"RIFF")
    with pytest.raises(ValueError, match=r"2/y\.wav: "):
        read_dataset(tmp_path)
    (tmp_path / "2" / "y.wav").unlink()
    (tmp_path / "3").mkdir()
    with pytest.raises(ValueError, match=r"/3: no \.wav or \.flac files"):
        read_dataset(tmp_path)
    (tmp_path / "3").rmdir()
    soundfile.write(tmp_path / "z.wav", X[0].T, 8000)
    with pytest.raises(ValueError, match=r"audio beside class folders: is z\.wav of no class"):
        read_dataset(tmp_path)
