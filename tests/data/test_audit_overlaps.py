import numpy as np
import pytest

from lagformer.data import Collection, audit


def recording(length, seed=0):
    return np.cumsum(np.random.default_rng(seed).normal(size=length))


def windows(signal, length, starts, normalise=True):
    cut = np.stack([signal[s : s + length] for s in starts])
    if normalise:
        cut = (cut - cut.mean(1, keepdims=True)) / cut.std(1, keepdims=True)
    return cut.round(7)


def found(train, test=None):
    return next(f for f in audit(train, test).findings if f.check == "overlapping_windows")


def collect(x):
    return Collection.from_arrays(x)


@pytest.mark.parametrize(
    ("step", "verdict"), [(25, "leak"), (50, "leak"), (70, "warn"), (90, "ok"), (100, "ok")]
)
@pytest.mark.parametrize("normalise", [True, False])
def test_neighbouring_windows_in_different_splits(step, verdict, normalise):
    """Windows of 100 steps, every second one in the test split: each shares 100 - step steps."""
    cut = windows(recording(4000), 100, range(0, 40 * step, step), normalise)
    f = found(collect(cut[::2]), collect(cut[1::2]))
    assert f.verdict == verdict
    assert f.score == (0 if verdict == "ok" else 1)
    if verdict != "ok":
        assert f"{100 - step}%" in f.detail


def test_only_the_overlapping_series_count_whatever_the_direction():
    train = windows(recording(5000), 120, range(0, 2400, 120))
    test = windows(recording(5000, seed=1), 120, range(0, 1200, 120))
    test[3] = windows(recording(5000), 120, [700])[0]
    test[8] = windows(recording(5000), 120, [1130])[0]
    f = found(collect(train), collect(test))
    assert f.verdict == "leak"
    assert f.score == 2 / 10
    assert "2 test series" in f.detail


def test_overlaps_within_the_training_split_warn():
    cut = windows(recording(3000), 100, range(0, 1000, 40))
    for test in (None, collect(windows(recording(3000, seed=5), 100, range(0, 900, 100)))):
        f = found(collect(cut), test)
        assert f.verdict == "warn"
        assert "24 training series" in f.detail


def test_channels_and_unequal_lengths():
    signal = np.stack([recording(900), recording(900, seed=1)])
    train = [signal[:, 0:80], signal[:, 200:290], signal[:, 400:470]]
    test = [signal[:, 240:330], recording(90, seed=7) * np.ones((2, 1)), signal[:, 500:560]]
    f = found(collect(train), collect(test))
    assert f.verdict == "leak"
    assert f.score == 1 / 3
    assert "train 1 and test 0 56%" in f.detail
    # One channel alone is no common recording.
    test[0] = np.stack([test[0][0], recording(90, seed=8)])
    assert found(collect(train), collect(test)).verdict == "ok"


@pytest.mark.parametrize("kind", ["sine", "ramp", "steps", "copies"])
def test_what_resembles_itself_is_no_overlap(kind):
    t = np.arange(100.0)
    rng = np.random.default_rng(0)
    x = {
        "sine": np.sin(2 * np.pi * (t + rng.integers(0, 20, (40, 1))) / 20),
        "ramp": rng.uniform(1, 5, (40, 1)) * t,
        "steps": np.floor(t / rng.integers(2, 9, (40, 1))) % 2,
        "copies": np.tile(recording(100), (40, 1)),
    }[kind]
    assert found(collect(x[:20]), collect(x[20:])).verdict == "ok"
