"""Malformed files: whatever the bytes, a Collection of plausible size or one ValueError line.

``LAGFORMER_FUZZ=10000 pytest tests/data/test_readers_fuzz.py`` mutates that many files per format.
"""

import io
import os
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile

from lagformer.data import Collection, read_dataset

COUNT = int(os.environ.get("LAGFORMER_FUZZ", "100"))
X = np.random.default_rng(7).normal(size=(5, 2, 12)).round(3)
Y = np.array(["a", "b", "a", "b", "a"])


def commas(row):
    return ",".join(map(str, row))


def npy():
    buffer = io.BytesIO()
    np.save(buffer, X)
    return buffer.getvalue()


def npz(save=np.savez):
    buffer = io.BytesIO()
    save(buffer, X=X, y=Y, names=np.array(list("pqrst")), mask=np.ones((5, 12), dtype=bool))
    return buffer.getvalue()


def parquet(**columns):
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def audio(kind):
    buffer = io.BytesIO()
    soundfile.write(buffer, np.tile(X[0].T, (20, 1)) / 10, 8000, format=kind)
    return buffer.getvalue()


def seeds():
    """One well-formed file per format and layout."""
    ts = "@problemName p\n@univariate false\n@classLabel true a b\n@data\n" + "".join(
        ":".join([*map(commas, x), y]) + "\n" for x, y in zip(X, Y, strict=True)
    )
    tsv = "".join(f"{y}\t" + "\t".join(map(str, x[0])) + "\n" for x, y in zip(X, Y, strict=True))
    wide = f"label,{commas(f't{i}' for i in range(12))}\n" + "".join(
        f"{y},{commas(x[0])}\n" for x, y in zip(X, Y, strict=True)
    )
    long = "id,time,u,v,label\n" + "".join(
        f"{i},{t},{commas(X[i, :, t])},{Y[i]}\n" for i in range(5) for t in range(12)
    )
    arff = (
        "@relation r\n"
        + "".join(f"@attribute t{i} numeric\n" for i in range(12))
        + "@attribute class {a,b}\n@data\n"
        + "".join(f"{commas(x[0])},{y}\n" for x, y in zip(X, Y, strict=True))
    )
    relational = (
        "@relation r\n@attribute s relational\n@attribute t0 numeric\n@end s\n"
        "@attribute class {a,b}\n@data\n"
        + "".join(f"'{commas(x[0])}\\n{commas(x[1])}',{y}\n" for x, y in zip(X, Y, strict=True))
    )
    texts = {"ts": ts, "tsv": tsv, "wide.csv": wide, "long.csv": long, "arff": arff}
    texts["relational.arff"] = relational
    flat = {f"t{i}": X[:, 0, i] for i in range(12)}
    rows = {"id": np.repeat(range(5), 12), "time": np.tile(range(12), 5), "v": X[:, 0].ravel()}
    return {name: text.encode() for name, text in texts.items()} | {
        "npy": npy(),
        "npz": npz(),
        "compressed.npz": npz(np.savez_compressed),
        "wide.parquet": parquet(**flat, label=Y),
        "long.parquet": parquet(**rows),
        "lists.parquet": parquet(u=list(X[:, 0]), v=list(X[:, 1]), label=Y),
        "wav": audio("WAV"),
        "flac": audio("FLAC"),
    }


SEEDS = seeds()
TOKENS = [b"", b"\x00", b"\xff", b"?", b"NaN", b"inf", b"1e999", b"-", b":", b",", b"\t", b"\r\n"]
TOKENS += [b"'", b'"', b"@data", b"{", b"\\n", b"_", b"\n\n", b"\x7f\xff\xff\xff", b"9" * 30]


def mutated(seed: bytes, rng: np.random.Generator) -> bytes:
    """Change a file in one to four places."""
    data = bytearray(seed)
    for _ in range(rng.integers(1, 5)):
        at = int(rng.integers(0, len(data) + 1))
        end = at + int(rng.integers(0, 1 + len(data) // 4))
        match rng.integers(0, 6):
            case 0:
                data = data[:at]
            case 1:
                data[at : at + 1] = bytes([rng.integers(0, 256)])
            case 2:
                data[at:at] = TOKENS[rng.integers(len(TOKENS))]
            case 3:
                del data[at:end]
            case 4:
                data[at:at] = data[at:end]
            case 5 if at < len(data):
                data[at] ^= 1 << int(rng.integers(0, 8))
    return bytes(data)


def check(path: Path) -> Collection | None:
    """Read a file; anything but a sound Collection or a one-line ValueError fails the test."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = read_dataset(path)
    except ValueError as error:
        message = str(error)
        assert message.startswith(str(path)) and "\n" not in message, message  # noqa: PT018
        return None
    size = path.stat().st_size
    n, channels, length = found.values.shape
    # A value takes at least a byte of text, but padding grows with the square of the file.
    assert found.mask.sum() <= 300 * size
    assert found.mask.shape == (n, length)
    assert found.mask.any(axis=1).all()
    assert len(found.names) == n
    assert found.labels is None or found.labels.shape == (n,)
    assert np.isfinite(found.values).all()
    assert channels >= 1
    return found


@pytest.mark.parametrize("name", SEEDS)
def test_mutated_files_are_read_or_refused(name, tmp_path):
    rng = np.random.default_rng(len(SEEDS[name]))
    path = tmp_path / f"x.{name}"
    path.write_bytes(SEEDS[name])
    assert check(path) is not None
    refused = 0
    for _ in range(COUNT):
        path.write_bytes(mutated(SEEDS[name], rng))
        refused += check(path) is None
    assert refused > 0


@pytest.mark.parametrize("name", SEEDS)
def test_random_bytes_are_refused(name, tmp_path):
    rng = np.random.default_rng(3)
    path = tmp_path / f"x.{name}"
    for size in (0, 1, 4, 100, 5000):
        path.write_bytes(rng.bytes(size))
        assert check(path) is None


@pytest.mark.parametrize("name", SEEDS)
def test_torn_files_lose_no_more_than_their_end(name, tmp_path):
    path = tmp_path / f"x.{name}"
    path.write_bytes(SEEDS[name])
    whole = read_dataset(path)
    for size in range(0, len(SEEDS[name]), max(1, len(SEEDS[name]) // COUNT)):
        path.write_bytes(SEEDS[name][:size])
        torn = check(path)
        if torn is None:
            continue
        assert not name.endswith(("npy", "npz", "parquet", "wav", "flac"))
        # Only the last line can have been cut inside a number or a label.
        before = len(torn) - 1
        shape = torn.values.shape[1:] if before else (whole.values.shape[1], 0)
        assert shape[0] == whole.values.shape[1]
        length = min(shape[1], whole.values.shape[2])
        np.testing.assert_array_equal(
            torn.values[:before, :, :length], whole.values[:before, :, :length]
        )
