import numpy as np
import pytest

from lagformer.data import Collection, audit


def collect(x, y=None, **options):
    return Collection.from_arrays(x, y, **options)


def findings(train, test=None):
    return {f.check: f for f in audit(train, test).findings}


def noise(n, seed=0):
    return np.random.default_rng(seed).normal(size=(n, 40))


def test_rare_classes_warn_but_many_even_ones_do_not():
    y = np.repeat(["a", "b", "c"], [60, 37, 3])
    found = findings(collect(noise(100), y))["class_balance"]
    assert (found.verdict, found.score) == ("warn", 0.03)
    assert "rare: c" in found.detail
    even = findings(collect(noise(100), np.arange(100) % 50))["class_balance"]
    assert (even.verdict, even.score) == ("ok", 0.02)
    single = findings(collect(noise(6), [0, 0, 0, 1, 1, 2]))["class_balance"]
    assert single.verdict == "warn"


def test_classes_absent_from_a_split_warn():
    train, test = collect(noise(6), list("aabbcc")), collect(noise(4, 1), list("aabd"))
    found = findings(train, test)["class_coverage"]
    assert (found.verdict, found.score) == ("warn", 2.0)
    assert "only in the training split: c; only in the test split: d" in found.detail
    assert findings(train, train)["class_coverage"].verdict == "ok"


def test_constant_series_warn():
    x = noise(10)
    x[3] = 0.1
    found = findings(collect(x), collect(noise(10, 1)))["constant_series"]
    assert (found.verdict, found.score) == ("warn", 1 / 20)
    both = np.stack([x, noise(10, 2)], axis=1)
    assert findings(collect(both))["constant_series"].verdict == "ok"


def test_missing_steps_warn_and_padding_does_not():
    x = noise(10)
    x[0, 5] = np.nan
    x[1, 30:] = np.nan
    found = findings(collect(x, missing="mask"))["missing_share"]
    assert found.verdict == "warn"
    assert found.score == pytest.approx(1 / 390)


def test_drift_names_what_drifted():
    waves = np.cumsum(noise(200), axis=1)
    assert findings(collect(waves[:100]), collect(waves[100:]))["drift"].verdict == "ok"
    found = findings(collect(waves[:100]), collect(waves[100:] + noise(100, 1)))["drift"]
    assert found.verdict == "warn"
    assert "roughness" in found.detail
    assert "mean" not in found.detail
