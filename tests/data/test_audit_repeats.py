import numpy as np
import pytest

from lagformer.data import Collection, audit


def series(n, length=80, seed=0):
    return np.cumsum(np.random.default_rng(seed).normal(size=(n, length)), axis=1)


def collect(x, y=None, prefix=""):
    return Collection.from_arrays(x, y, names=[f"{prefix}{i}" for i in range(len(x))])


def findings(train, test=None):
    return {f.check: f for f in audit(train, test).findings}


def test_exact_repeats_are_counted_and_named():
    x = series(30)
    test = series(20, seed=1)
    test[4], test[11] = x[7], x[2]
    found = findings(collect(x, prefix="a"), collect(test, prefix="b"))["repeats_across_splits"]
    assert found.verdict == "leak"
    assert found.score == 2 / 20
    assert "train a7 = test b4" in found.detail
    assert "train a2 = test b11" in found.detail


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (lambda rng, x: x * 3.7 - 12, "leak"),
        (lambda rng, x: x + 0.002 * x.std() * rng.normal(size=x.shape), "leak"),
        (lambda rng, x: x.astype(np.float32).astype(np.float64), "leak"),
        (lambda rng, x: x + 0.04 * x.std() * rng.normal(size=x.shape), "warn"),
        (lambda rng, x: x + 0.5 * x.std() * rng.normal(size=x.shape), "ok"),
        (lambda rng, x: x[::-1], "ok"),
    ],
)
@pytest.mark.parametrize("how_many", [1, 60])
def test_changed_copies(change, verdict, how_many):
    """One copy, or a test split made of nothing but copies."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(60, 80))
    test = rng.normal(size=(60, 80))
    for i in range(how_many):
        test[i] = change(rng, x[i])
    found = findings(collect(x), collect(test))["repeats_across_splits"]
    assert found.verdict == verdict
    assert found.score == (0 if verdict == "ok" else how_many / 60)


def test_repeats_within_the_training_split_warn():
    x = series(25)
    x[9] = x[1]
    x[20] = x[1]
    x[14] = x[3] * 2 + 1e-3 * series(1, seed=9)[0]
    found = findings(collect(x))["repeats_in_train"]
    assert found.verdict == "warn"
    assert found.score == 3 / 25
    assert "2 exact and 1 near" in found.detail
    assert "repeats_across_splits" not in findings(collect(x))


def test_patterns_of_a_few_levels_may_coincide():
    rng = np.random.default_rng(0)
    spikes = np.zeros((60, 30))
    spikes[np.arange(60), rng.integers(30, size=60)] = 1
    found = findings(collect(spikes[:30]), collect(spikes[30:]))["repeats_across_splits"]
    assert found.verdict == "warn"
    assert " 0 are exactly" in found.detail


def test_short_measured_series_are_not_taken_for_patterns():
    x = np.random.default_rng(0).normal(size=(30, 6))
    test = np.random.default_rng(1).normal(size=(10, 6))
    test[0] = x[5]
    assert findings(collect(x), collect(test))["repeats_across_splits"].verdict == "leak"


def test_repeats_with_different_labels_warn():
    x, y = series(20), np.arange(20) % 2
    x[4], x[8] = x[1], x[2]
    found = findings(collect(x, y))["label_conflicts"]
    assert (found.verdict, found.score) == ("warn", 1.0)
    assert "train 1 = train 4" in found.detail


def test_padding_lengths_and_channels_take_part():
    rng = np.random.default_rng(0)
    train = Collection.from_arrays([rng.normal(size=(2, n)) for n in (9, 12, 7, 12, 10, 11, 8)])
    longer = [rng.normal(size=(2, 15)), train.values[1][:, :12], train.values[2][:, :6]]
    found = findings(train, Collection.from_arrays(longer))["repeats_across_splits"]
    assert found.verdict == "leak"
    assert found.score == 1 / 3
    assert "train 1 = test 1" in found.detail


def test_similar_series_of_few_dimensions_are_no_repeats():
    """Points of a one-dimensional family lie close together by nature."""
    phase = np.random.default_rng(0).uniform(0, 2 * np.pi, (400, 1))
    waves = np.sin(np.linspace(0, 6 * np.pi, 90) + phase)
    waves += 1e-4 * np.random.default_rng(1).normal(size=waves.shape)
    found = findings(collect(waves[:200]), collect(waves[200:]))
    assert found["repeats_in_train"].verdict == "ok"
    assert found["repeats_across_splits"].verdict == "ok"


def test_blocks_give_the_same_pairs(monkeypatch):
    from lagformer.data import audit_repeats

    x = series(50)
    x[30] = x[3] + 1e-4
    whole = findings(collect(x[:25]), collect(x[25:]))
    monkeypatch.setattr(audit_repeats, "_BLOCK", 7)
    assert findings(collect(x[:25]), collect(x[25:])) == whole
    assert whole["repeats_across_splits"].verdict == "leak"
