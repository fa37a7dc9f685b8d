"""`LagformerClassifier` on series of every kind: inputs, labels, weights, validation, seeds."""

import copy
import io
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from lagformer import LagformerClassifier
from lagformer.data import Collection

RNG = np.random.default_rng(0)
Y = np.arange(24) % 2
X = np.sin((0.4 + 0.8 * Y[:, None]) * np.arange(20) + 6 * RNG.random((24, 1)))
X += 0.05 * RNG.standard_normal(X.shape)


def quick(**parameters: Any) -> LagformerClassifier:
    return LagformerClassifier(**{"max_epochs": 2, "random_state": 0} | parameters)


def logits(model: LagformerClassifier, series: Any) -> np.ndarray:
    """Log-probabilities up to a constant per series, which is all that predictions depend on."""
    p = np.log(model.predict_proba(series))
    return p - p.mean(axis=1, keepdims=True)


@pytest.fixture(scope="module")
def fitted() -> LagformerClassifier:
    return quick().fit(X, Y)


# --------------------------------------------------------------------------------------- learning


def test_it_learns_and_scores_like_any_classifier() -> None:
    model = quick(max_epochs=60, learning_rate=3e-3).fit(X, Y)
    assert model.score(X, Y) == 1.0
    assert model.score(X, Y) == (model.predict(X) == Y).mean()
    assert f1_score(Y, model.predict(X), average="macro") == 1.0


def test_probabilities_are_in_the_order_of_the_classes(fitted: LagformerClassifier) -> None:
    p = fitted.predict_proba(X)
    assert p.shape == (24, 2)
    assert p.dtype == np.float64
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-12)
    assert np.array_equal(fitted.predict(X), fitted.classes_[p.argmax(axis=1)])


def test_the_first_batch_decides_nothing_for_the_second() -> None:
    """More series than a batch of prediction: the same as one by one."""
    model = quick().fit(X, Y)
    many = np.tile(X, (30, 1))
    np.testing.assert_allclose(
        logits(model, many), np.tile(logits(model, X), (30, 1)), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("n", [2, 3, 9, 17])
def test_a_last_batch_of_one_and_fewer_series_than_a_batch_train(n: int) -> None:
    assert quick().fit(X[:n], Y[:n]).predict(X).shape == (24,)


@pytest.mark.parametrize("length", [1, 2, 3, 51, 101])
def test_any_length_trains_and_no_step_is_lost(length: int) -> None:
    """Shorter than a patch, no multiple of one: a change of the last step still counts."""
    series = RNG.standard_normal((6, length))
    model = quick().fit(series, Y[:6])
    changed = series.copy()
    changed[:, -1] += 1
    assert not np.array_equal(model.predict_proba(series), model.predict_proba(changed))


def test_derived_settings_are_written_down() -> None:
    config = LagformerClassifier(max_epochs=1, random_state=3).fit(X, Y).config_
    assert config["series_length"] == 20
    assert config["patch_length"] == 1
    assert config["max_lag"] == 19
    assert config["batch_size"] == 8
    assert config["seed"] == 3
    long = LagformerClassifier(max_epochs=1).fit(RNG.standard_normal((4, 2000)), Y[:4])
    assert long.config_["patch_length"] == 80
    assert long.config_["stem_stride"] == 16
    assert long.config_["max_lag"] == 24


@pytest.mark.parametrize(
    ("n", "locked", "epochs", "batch"),
    [
        (30, True, 500, 8),
        (300, True, 300, 30),
        (3601, True, 53, 64),
        (9000, True, 30, 64),
        (30, False, 212, 8),
        (3601, False, 15, 64),
        (9000, False, 15, 64),
    ],
)
def test_defaults_suit_few_series_and_many(n: int, locked: bool, epochs: int, batch: int) -> None:
    recipe = LagformerClassifier()._recipe(n, locked)
    assert (recipe.epochs, recipe.batch_size) == (epochs, batch)


@pytest.mark.parametrize("locked", [True, False])
def test_the_stem_follows_the_phase_of_the_series(locked: bool) -> None:
    y = np.arange(40) % 2
    phase = 0 if locked else 2 * np.pi * (np.arange(40)[:, None] // 2) / 20
    X = np.sin((0.3 + 0.2 * y[:, None]) * np.arange(64) + phase)
    config = LagformerClassifier(max_epochs=1, random_state=0).fit(X, y).config_
    assert config["stem"] == ("kernels" if locked else "convolutions")
    assert config["shift"] is not locked
    assert (config["mixup"] > 0) is locked


@pytest.mark.parametrize("preset", ["olympiad", "base", "fast"])
@pytest.mark.parametrize("locked", [True, False])
def test_series_with_a_phase_are_not_rotated_unless_told(preset: str, locked: bool) -> None:
    assert LagformerClassifier(preset)._recipe(30, locked).shift is not locked
    assert LagformerClassifier(preset, shift=True)._recipe(30, locked).shift is True
    assert LagformerClassifier(preset, shift=False)._recipe(30, locked).shift is False


@pytest.mark.parametrize(("n", "share"), [(30, 0.8), (1000, 0.5)])
def test_of_few_series_the_readout_decides(n: int, share: float) -> None:
    y = np.arange(n) % 2
    phase = 6.3 * RNG.random((n, 1))
    X = np.sin((0.3 + 0.2 * y[:, None]) * np.arange(16) + phase)
    model = LagformerClassifier(max_epochs=1, validation_fraction=0.0, random_state=0).fit(X, y)
    assert model.config_["wide_share"] == share


def test_noise_goes_with_rotation() -> None:
    assert LagformerClassifier()._recipe(30, locked=True).coloured_noise == 0
    assert LagformerClassifier()._recipe(30, locked=False).coloured_noise > 0


def test_olympiad_keeps_its_recipe_whatever_the_size() -> None:
    recipe = LagformerClassifier("olympiad")._recipe(30, locked=False)
    assert (recipe.epochs, recipe.batch_size, recipe.shift) == (80, 64, True)


# ----------------------------------------------------------------------------------------- inputs


def test_every_form_of_the_same_series_predicts_the_same(fitted: LagformerClassifier) -> None:
    expected = fitted.predict_proba(X)
    forms: dict[str, Any] = {
        "three dimensions": X[:, None],
        "list of lists": X.tolist(),
        "list of arrays": list(X),
        "list of (C, L)": list(X[:, None]),
        "DataFrame": pd.DataFrame(X),
        "object array": X.astype(object),
        "Fortran order": np.asfortranarray(X),
        "Collection": Collection.from_arrays(X),
    }
    for name, form in forms.items():
        assert np.array_equal(fitted.predict_proba(form), expected), name


def test_whole_numbers_are_numbers() -> None:
    whole = np.round(10 * X).astype(np.int16)
    results = [
        quick().fit(form, Y).predict_proba(form)
        for form in (whole, whole.astype(float), whole.astype(np.float32), pd.DataFrame(whole))
    ]
    for result in results[1:]:
        assert np.array_equal(result, results[0])


def test_inputs_are_left_as_they_were() -> None:
    series, labels, weights = X.copy(), Y.copy(), np.ones(24)
    series[3, 15:] = np.nan
    before = series.copy()
    for array in (series, labels, weights):
        array.setflags(write=False)
    quick(normalize=True).fit(series, labels, sample_weight=weights).predict(series)
    np.testing.assert_array_equal(series, before)


def test_channels() -> None:
    two = np.stack([X, X[:, ::-1]], axis=1)
    model = quick().fit(two, Y)
    assert model.predict(two).shape == (24,)
    with pytest.raises(ValueError, match=r"X has 1 channel\(s\), but the model was fitted on 2"):
        model.predict(X)
    with pytest.raises(ValueError, match="channels and time swapped"):
        model.fit(np.zeros((4, 50, 2)) + np.arange(2), Y[:4])


def test_another_length_than_in_training(fitted: LagformerClassifier) -> None:
    with pytest.raises(ValueError, match=r"X has 15 features.* expecting 20 features"):
        fitted.predict(X[:, :15])
    for length in (5, 15, 70):
        series = np.resize(X, (24, length))
        p = fitted.predict_proba(list(series))
        assert np.array_equal(p, fitted.predict_proba(series[:, None]))
        assert np.isfinite(p).all()


@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=5),
    longest=st.integers(20, 60),
    where=st.integers(0, 19),
)
@settings(max_examples=25)
def test_padding_changes_no_prediction(lengths: list[int], longest: int, where: int) -> None:
    model = _PADDED
    series = [X[(where + i) % 24, :length] for i, length in enumerate(lengths)]
    alone = np.concatenate([logits(model, [s]) for s in series])
    together = logits(model, [*series, np.resize(X[0], longest)])[:-1]
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-6)
    table = np.full((len(series), longest), np.nan)
    for row, s in zip(table, series, strict=True):
        row[: len(s)] = s
    np.testing.assert_allclose(logits(model, table[:, None]), alone, rtol=0, atol=1e-6)


_PADDED = quick(max_epochs=8).fit([x[: 12 + i % 9] for i, x in enumerate(X)], Y)


def test_unequal_series_train_the_same_as_padded_ones() -> None:
    series = [x[: 12 + i % 9] for i, x in enumerate(X)]
    table = np.full((24, 33), np.nan)
    for row, s in zip(table, series, strict=True):
        row[: len(s)] = s
    expected = quick().fit(series, Y).predict_proba(series)
    assert np.array_equal(quick().fit(table, Y).predict_proba(series), expected)


def test_missing_values() -> None:
    holes = X.copy()
    holes[2, 5] = holes[7, 0] = np.nan
    with pytest.raises(ValueError, match=r"Input X contains NaN: 2 value\(s\), the first in ser"):
        quick().fit(holes, Y)
    for missing in ("mask", "interpolate"):
        model = quick(missing=missing).fit(holes, Y)
        assert np.isfinite(model.predict_proba(holes)).all()
    with pytest.raises(ValueError, match=r"Input X contains inf"):
        quick(missing="mask").fit(np.where(np.isnan(holes), np.inf, holes), Y)
    with pytest.raises(ValueError, match="missing must be one of"):
        quick(missing="drop").fit(holes, Y)


def test_values_too_far_out_are_refused_by_name(fitted: LagformerClassifier) -> None:
    far = X.copy()
    far[5] *= 1e200
    with pytest.raises(ValueError, match="1 series get no finite score, the first is series 5"):
        fitted.predict(far)


# ---------------------------------------------------------------------------------------- scaling


def test_normalize_hides_level_and_amplitude_and_nothing_else_does() -> None:
    level = np.repeat(np.arange(24) % 2, 20).reshape(24, 20) * 5.0 + X * 0.01
    moved = level * 3 + 7
    model = quick(normalize=True).fit(level, Y)
    np.testing.assert_allclose(logits(model, moved), logits(model, level), rtol=0, atol=1e-4)
    plain = quick(max_epochs=10).fit(level, Y)
    assert plain.score(level, Y) == 1.0
    assert np.abs(logits(plain, moved) - logits(plain, level)).max() > 0.1


@pytest.mark.parametrize("value", [0.0, 0.1, -1e6 / 3, 1e300])
@pytest.mark.parametrize("normalize", [False, True])
def test_constant_series_become_zeros(value: float, normalize: bool) -> None:
    constant = np.full((6, 20), value)
    model = quick(normalize=normalize).fit(constant + np.zeros((6, 1)), Y[:6])
    assert np.isfinite(model.predict_proba(constant)).all()
    values, _ = model._tensors(Collection.from_arrays(constant))
    assert not values.any()


# ----------------------------------------------------------------------------------------- labels


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["no", "yes"]),
        np.array(["No", "yes"], dtype=object),
        np.array([-1, 1]),
        np.array([7, 300], dtype=np.int16),
        np.array([False, True]),
        np.array([1.0, 4.0]),
        pd.array(["u", "v"]),
        pd.Categorical(["u", "v"]),
    ],
    ids=repr,
)
def test_labels_of_every_type_come_back(labels: Any) -> None:
    given = labels[1 - Y]  # the greater one first
    model = quick().fit(X, given)
    plain = np.asarray(labels)
    assert np.array_equal(model.classes_, np.unique(plain))
    assert model.classes_.dtype == plain.dtype
    predicted = model.predict(X)
    assert predicted.dtype == plain.dtype
    assert set(predicted) <= set(plain)
    flipped = quick().fit(X, 1 - Y)
    assert np.array_equal(model.predict_proba(X), flipped.predict_proba(X))


def test_a_column_of_labels_is_flattened_with_a_warning() -> None:
    with pytest.warns(DataConversionWarning, match="column-vector"):
        model = quick().fit(X, Y[:, None])
    assert model.predict(X).shape == (24,)


def test_a_class_of_one_and_one_absent_from_validation_train_and_score() -> None:
    labels = np.r_[2, Y[1:]]
    model = quick(validation_fraction=0.2).fit(X, labels)
    assert model.classes_.tolist() == [0, 1, 2]
    assert "validation_macro_f1" in model.history_[0]
    assert 0 <= model.score(X, labels) <= 1
    assert 0 <= model.score(X[1:], labels[1:]) <= 1


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.zeros(24), "at least 2 classes with a positive weight, got 1 class"),
        (np.linspace(0, 1, 24), "Unknown label type: continuous"),
        (np.r_[np.nan, Y[1:]], "Input y contains NaN"),
        (np.array([1, "a"] * 12, dtype=object), "all text or all numbers, got int, str"),
        (np.array([b"a", b"b"])[Y], r"labels are bytes; decode them"),
        (Y[:-1], "inconsistent numbers of samples"),
        (np.stack([Y, Y], axis=1), "1d array"),
        (None, "requires y to be passed"),
    ],
)
def test_bad_labels_are_one_line(labels: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        quick().fit(X, labels)
    assert "\n" not in str(raised.value)


def test_a_collection_brings_its_labels() -> None:
    data = Collection.from_arrays(X, Y)
    expected = quick().fit(X, Y).predict_proba(X)
    assert np.array_equal(quick().fit(data).predict_proba(data), expected)
    assert np.array_equal(quick().fit(data, 1 - Y).predict_proba(data), expected[:, ::-1]) is False
    with pytest.raises(ValueError, match="requires y"):
        quick().fit(Collection.from_arrays(X))


# ---------------------------------------------------------------------------------------- weights


def test_a_weight_is_a_number_of_repetitions_in_any_order() -> None:
    counts = RNG.integers(0, 4, 24)
    order = RNG.permutation(counts.sum())
    repeated = X.repeat(counts, axis=0)[order], Y.repeat(counts)[order]
    for more in ({}, {"class_weight": "balanced"}, {"validation_fraction": 0.3}):
        weighted = quick(**more).fit(X, Y, sample_weight=counts)
        assert np.array_equal(
            quick(**more).fit(*repeated).predict_proba(X), weighted.predict_proba(X)
        )


def test_class_weights_move_the_predictions() -> None:
    labels = (np.arange(24) >= 20).astype(int)
    share = {
        str(w): quick(max_epochs=6, class_weight=w).fit(X, labels).predict_proba(X)[:, 1].mean()
        for w in (None, "balanced", {1: 100.0})
    }
    assert share["None"] < share["balanced"] < share["{1: 100.0}"]
    by_hand = {0: 24 / 2 / 20, 1: 24 / 2 / 4}
    expected = quick(class_weight="balanced").fit(X, labels).predict_proba(X)
    assert np.array_equal(quick(class_weight=by_hand).fit(X, labels).predict_proba(X), expected)


@pytest.mark.parametrize(
    ("arguments", "parameters", "message"),
    [
        ({"sample_weight": -np.ones(24)}, {}, "finite numbers ≥ 0"),
        ({"sample_weight": np.full(24, np.nan)}, {}, "finite numbers ≥ 0"),
        ({"sample_weight": np.ones(3)}, {}, r"shape \(24,\), got \(3,\)"),
        ({"sample_weight": np.zeros(24)}, {}, "all zero"),
        ({"sample_weight": Y}, {}, "at least 2 classes"),
        ({}, {"class_weight": {5: 1.0}}, "class_weight names 5, which is no class of y"),
        ({}, {"class_weight": "even"}, 'must be "balanced"'),
        ({}, {"class_weight": {0: -1.0}}, "finite numbers ≥ 0"),
        ({}, {"validation_fraction": 1.0}, r"validation_fraction must lie in \[0, 1\), got 1.0"),
        ({}, {"patience": 0}, "patience must be None or an integer ≥ 1"),
        ({}, {"patience": 3, "validation_fraction": 0.0}, "patience needs validation data"),
        ({}, {"max_epochs": 0}, "epochs must be an integer ≥ 1"),
        ({}, {"batch_size": 0}, "batch_size must be an integer ≥ 1"),
        ({}, {"learning_rate": -1.0}, "learning_rate must be positive"),
        ({}, {"preset": "gold"}, "unknown preset 'gold'"),
        ({}, {"random_state": -1}, "random_state must be"),
        ({}, {"random_state": "one"}, "random_state must be"),
        ({}, {"device": "tpu9"}, "device 'tpu9' is not available"),
        ({"validation_data": (X, Y + 1)}, {}, r"labels that y lacks: \[2\]"),
        ({"validation_data": (np.zeros((4, 3, 20)) + np.arange(20), Y[:4])}, {}, "3 channel"),
    ],
    ids=str,
)
def test_bad_arguments_are_one_line(
    arguments: dict[str, Any], parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        quick(**parameters).fit(X, Y, **arguments)
    assert "\n" not in str(raised.value)


# ------------------------------------------------------------------------------------- validation


def test_the_best_epoch_is_restored() -> None:
    seen: list[float] = []
    model = quick(max_epochs=12, learning_rate=0.05, on_epoch=lambda r: seen.append(r["epoch"]))
    model.fit(X[:16], Y[:16], validation_data=(X[16:], Y[16:]))
    assert seen == list(range(1, 13))
    best = max((r["validation_macro_f1"], -r["validation_loss"]) for r in model.history_)
    p = model.predict_proba(X[16:])
    assert f1_score(Y[16:], model.predict(X[16:]), average="macro") == pytest.approx(best[0])
    assert -np.log(p[np.arange(8), Y[16:]]).mean() == pytest.approx(-best[1], rel=1e-5)


def test_early_stopping_says_why() -> None:
    # Validation labels that contradict training: it gets worse with every epoch.
    model = quick(max_epochs=60, learning_rate=0.01, patience=3)
    model.fit(X, Y, validation_data=(X, 1 - Y))
    assert len(model.history_) < 60
    best = len(model.history_) - 3
    assert model.history_[-1]["stopped"] == f"no validation score in 3 epochs above epoch {best}'s"
    assert "stopped" not in model.history_[-2]


def test_small_data_has_no_validation_by_default_large_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "validation_loss" not in quick().fit(X, Y).history_[0]
    assert "validation_loss" in quick(patience=5).fit(X, Y).history_[0]
    many = RNG.standard_normal((1000, 4))
    assert "validation_loss" in quick(max_epochs=1).fit(many, np.arange(1000) % 3).history_[0]


# ------------------------------------------------------------------------------------- randomness


def test_seeds() -> None:
    def probabilities(random_state: Any) -> np.ndarray:
        return quick(random_state=random_state).fit(X, Y).predict_proba(X)

    assert np.array_equal(probabilities(0), probabilities(0))
    assert np.array_equal(probabilities(np.int64(0)), probabilities(0))
    assert not np.array_equal(probabilities(0), probabilities(1))
    assert not np.array_equal(probabilities(None), probabilities(None))
    state = np.random.RandomState(0)
    first = probabilities(state)
    assert np.array_equal(first, probabilities(np.random.RandomState(0)))
    assert not np.array_equal(first, probabilities(state)), "the instance moves on"


def test_a_seed_that_was_drawn_can_be_used_again() -> None:
    model = quick(random_state=None).fit(X, Y)
    again = quick(random_state=model.config_["seed"]).fit(X, Y)
    assert np.array_equal(model.predict_proba(X), again.predict_proba(X))


def test_the_global_random_state_is_left_alone() -> None:
    before = torch.get_rng_state(), np.random.get_state()  # noqa: NPY002
    for random_state in (0, None):
        quick(random_state=random_state, validation_fraction=0.2).fit(X, Y).predict(X)
    after = torch.get_rng_state(), np.random.get_state()  # noqa: NPY002
    assert torch.equal(before[0], after[0])
    assert np.array_equal(before[1][1], after[1][1])
    assert before[1][2:] == after[1][2:]


def test_threads_and_processes_train_the_same_models() -> None:
    def train(seed: int) -> np.ndarray:
        return quick(random_state=seed).fit(X, Y).predict_proba(X)

    expected = [train(seed) for seed in range(3)]
    threads = joblib.Parallel(n_jobs=3, backend="threading")(
        joblib.delayed(train)(seed) for seed in range(3)
    )
    for a, b in zip(expected, threads, strict=True):
        assert np.array_equal(a, b)


# ----------------------------------------------------------------------------------- scikit-learn


def test_pipeline_grid_search_and_cross_validation() -> None:
    pipe = make_pipeline(StandardScaler(), quick())
    search = GridSearchCV(
        pipe,
        {"lagformerclassifier__learning_rate": np.array([1e-3, 3e-3])},
        scoring="f1_macro",
        cv=2,
    )
    search.fit(X, Y)
    assert search.best_estimator_.predict(X).shape == (24,)
    scores = cross_val_score(quick(max_epochs=np.int64(1)), X, Y, cv=2, n_jobs=2)
    assert scores.shape == (2,)


def test_a_clone_is_unfitted(fitted: LagformerClassifier) -> None:
    copied = clone(fitted)
    assert copied.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        copied.predict(X)
    with pytest.raises(NotFittedError):
        copied.save("nowhere")


def test_a_second_fit_forgets_the_first() -> None:
    model = quick().fit(pd.DataFrame(X).add_prefix("t"), Y)
    assert model.n_features_in_ == 20
    model.fit(list(X[:, :9]), Y)
    assert not hasattr(model, "n_features_in_")
    assert not hasattr(model, "feature_names_in_")
    assert model.config_["series_length"] == 9


# ----------------------------------------------------------------------------------------- copies


def test_copies_predict_the_same_bits(fitted: LagformerClassifier) -> None:
    expected = fitted.predict_proba(X)
    buffer = io.BytesIO()
    joblib.dump(fitted, buffer)
    buffer.seek(0)
    for other in (
        pickle.loads(pickle.dumps(fitted)),
        copy.deepcopy(fitted),
        joblib.load(buffer),
    ):
        assert np.array_equal(other.predict_proba(X), expected)


def test_a_pickle_holds_weights_of_the_cpu(
    fitted: LagformerClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever they lie: the copy that is pickled was moved, the model itself was not."""
    moved = []
    monkeypatch.setattr(type(fitted.model_), "cpu", lambda self: moved.append(self) or self)
    pickle.dumps(fitted)
    (copied,) = moved
    assert copied is not fitted.model_


def test_another_process_predicts_the_same_bits(
    fitted: LagformerClassifier, tmp_path: Path
) -> None:
    fitted.save(tmp_path / "model")
    (tmp_path / "model.pickle").write_bytes(pickle.dumps(fitted))
    np.save(tmp_path / "X.npy", X)
    code = (
        "import sys, pickle, pathlib, numpy, torch\n"
        "torch.set_num_threads(1)\n"
        "from lagformer import LagformerClassifier\n"
        "home = pathlib.Path(sys.argv[1])\n"
        "X = numpy.load(home / 'X.npy')\n"
        "for model in (LagformerClassifier.load(home / 'model'),\n"
        "              pickle.loads((home / 'model.pickle').read_bytes())):\n"
        "    sys.stdout.buffer.write(model.predict_proba(X).tobytes())\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, check=False
    )
    assert result.stderr == b""
    assert result.stdout == 2 * fitted.predict_proba(X).tobytes()


def test_prediction_takes_no_gradients_and_bounded_memory(
    fitted: LagformerClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    largest = 0
    forward = type(fitted.model_).forward

    def watched(self: Any, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        nonlocal largest
        assert not torch.is_grad_enabled()
        largest = max(largest, len(x))
        return forward(self, x, mask)

    monkeypatch.setattr(type(fitted.model_), "forward", watched)
    assert fitted.predict(np.tile(X, (50, 1))).shape == (1200,)
    assert largest == 6400 // 20


def test_progress_is_silent_by_default_and_one_line_when_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    quick().fit(X, Y)
    assert capsys.readouterr() == ("", "")
    quick(verbose=1).fit(X, Y)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("epoch 1/2 · loss ")
    assert len(err.splitlines()) == 2


# -------------------------------------------------------------------------------------- resuming


def test_an_interrupted_fit_resumes_and_ends_with_the_same_weights(tmp_path: Path) -> None:
    expected = quick(max_epochs=6).fit(X, Y).predict_proba(X)

    def stop(record: Any) -> None:
        if record["epoch"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quick(max_epochs=6, on_epoch=stop, checkpoint_dir=tmp_path).fit(X, Y)
    seen: list[int] = []
    model = quick(
        max_epochs=6, checkpoint_dir=tmp_path, on_epoch=lambda record: seen.append(record["epoch"])
    )
    assert np.array_equal(model.fit(X, Y).predict_proba(X), expected)
    assert seen == [4, 5, 6]
    with pytest.raises(ValueError, match="belongs to another run"):
        quick(max_epochs=6, checkpoint_dir=tmp_path).fit(X[:-1], Y[:-1])


def test_an_early_stop_is_not_trained_past_on_resuming(tmp_path: Path) -> None:
    def run() -> LagformerClassifier:
        model = quick(max_epochs=60, learning_rate=0.01, patience=2, checkpoint_dir=tmp_path)
        return model.fit(X, Y, validation_data=(X, 1 - Y))

    first = run()
    assert "stopped" in first.history_[-1]
    assert run().history_ == first.history_


def test_what_was_seen_in_training(fitted: LagformerClassifier) -> None:
    assert fitted.seen_in_training(X).all()
    new = np.r_[X[:3], X[:3] + 1e-9]
    assert fitted.seen_in_training(new).tolist() == [True] * 3 + [False] * 3
    padded = np.pad(X, ((0, 0), (0, 7)), constant_values=np.nan)
    assert fitted.seen_in_training(padded[:, None]).all()
    chosen_by = quick().fit(X[:12], Y[:12], validation_data=(X[12:], Y[12:]))
    assert chosen_by.seen_in_training(X).all()
