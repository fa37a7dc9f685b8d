"""`LagformerClassifier`: the network as a scikit-learn estimator."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from jaxtyping import Bool, Float64
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from lagformer.arguments import (
    class_weights,
    device_of,
    is_table,
    sample_weights,
    seed_of,
    sorted_classes,
)
from lagformer.data import Collection
from lagformer.model import LagformerConfig
from lagformer.preprocessing import (
    Scaling,
    WeightedSeries,
    digests,
    hold_out,
    merge_repeats,
    phase_locked,
    short,
    trimmed,
)
from lagformer.saving import load_classifier, save_classifier
from lagformer.training.history import EpochRecord
from lagformer.training.loop import Examples, fit, new_model, predict_logits
from lagformer.training.progress import progress_line
from lagformer.training.recipe import Recipe

_FEW, _SHARE_OF_FEW = 1000, 0.8  # from so many series on the preset's share of the readout holds
_STEPS, _LOCKED_STEPS = 850, 3000  # optimiser steps that `max_epochs=None` aims at
_PREDICT_TOKENS = 6400  # a batch of prediction: what the caches hold


class LagformerClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Time-series classifier: linear-time attention with relative positions.

    X is an array or DataFrame (n, L), an array (n, C, L), a list of (L_i,) or (C, L_i) arrays, or
    a `Collection`. Two dimensions are always n series of one channel; NaN up to the end of a
    series is padding. y is (n,) labels of any type; predictions have their dtype.

    A weight is exactly a number of repetitions: equal series of one class are merged and their
    weights added, whatever order they come in, and no repeat of a held-out series stays in
    training. The global random state is neither read nor changed.

    Args:
        preset: "base"; "fast", which predicts some ten times quicker and is less accurate, much so
            on aligned series; or "olympiad" for the recipe on FordA to the letter.
        max_epochs: passes over the training set; None: as many as make about 850 steps, at least
            15; where the series have a mean curve (see `shift`) 3000, at least 30; 500 at most (80
            for "olympiad").
        batch_size: series per step at most; "base" and "fast" take fewer from less than
            ten batches.
        learning_rate: peak of the one-cycle schedule; None: 2e-3 (1e-3 for "olympiad").
        validation_fraction: share of each class that is held out to choose the best epoch, by
            macro F1 (ties: the lower loss). Classes too small to share train only; 0, or classes
            all too small, means no validation: the last epoch stays. None: 0.1 from 1000 series on
            or with patience, else 0, for a choice by a handful of series is noise.
        patience: end after that many epochs without a better validation score; the last record of
            `history_` then says so. None: never.
        class_weight: "balanced" (inverse to the classes' weights), or weights by class, 1 where
            none is given.
        normalize: True scales each series by its own mean and standard deviation (a constant one
            becomes zeros) and so hides differences in level and amplitude; False scales all
            alike, by those of the training set.
        shift: True for windows cut at arbitrary moments: training series are rotated circularly at
            random; wrong where it matters at what time something happens. None: True if the
            training series have no mean curve (`lagformer.preprocessing.phase_locked`). "base" also
            chooses its stem by that (`LagformerConfig.preset`).
        missing: what to do with missing values: "error", "mask" or "interpolate"
            (`Collection.from_arrays`).
        random_state: int, numpy `RandomState`, or None for fresh entropy. Equal ints give equal
            models.
        device: "auto" (CUDA, else MPS, else CPU) or a torch device.
        verbose: 1 shows one progress line with the time left.
        on_epoch: called with the record of each epoch.
        checkpoint_dir: folder for a checkpoint after each epoch; another fit with equal data,
            settings and int `random_state` continues from it and ends with the same weights.

    Attributes (after fit):
        classes_: the labels, sorted; columns of `predict_proba`.
        history_: one record per epoch (`EpochRecord`).
        config_: every size and setting that was used, the derived ones included.
        model_: the `Lagformer`.
        n_features_in_, feature_names_in_: of a two-dimensional X alone; predict then refuses two-
            dimensional arrays of another length. As a list or (n, C, L) array, any length goes:
            lags beyond those seen in training use the furthest one's vector.
    """

    def __init__(
        self,
        preset: str = "base",
        *,
        max_epochs: int | None = None,
        batch_size: int = 64,
        learning_rate: float | None = None,
        validation_fraction: float | None = None,
        patience: int | None = None,
        class_weight: Literal["balanced"] | dict[Any, float] | None = None,
        normalize: bool = False,
        shift: bool | None = None,
        missing: Literal["error", "mask", "interpolate"] = "error",
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        verbose: int = 0,
        on_epoch: Callable[[EpochRecord], None] | None = None,
        checkpoint_dir: str | Path | None = None,
    ) -> None:
        self.preset = preset
        self.max_epochs = max_epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.class_weight = class_weight
        self.normalize = normalize
        self.shift = shift
        self.missing = missing
        self.random_state = random_state
        self.device = device
        self.verbose = verbose
        self.on_epoch = on_epoch
        self.checkpoint_dir = checkpoint_dir

    def __sklearn_tags__(self) -> Tags:
        """Say what input is understood."""
        tags: Tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.allow_nan = self.missing != "error"
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """Pickle weights from the CPU: they load where there is no GPU."""
        state: dict[str, Any] = super().__getstate__()
        if "model_" in state:
            state = state | {"model_": copy.deepcopy(state["model_"]).cpu()}
        return state

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: ArrayLike | None = None,
        validation_data: tuple[Any, Any] | Collection | None = None,
    ) -> Self:
        """Train on series X with labels y.

        Args:
            X: the series.
            y: (n,) labels; None takes those of a `Collection`.
            sample_weight: (n,) weights ≥ 0; None: equal.
            validation_data: (X, y), or a labelled `Collection`, to choose the best epoch by; all
                of X then trains.

        Raises ValueError for series or labels that do not fit (`Collection.from_arrays`), fewer
        than two classes, and parameters out of range.
        """
        for name in ("n_features_in_", "feature_names_in_"):
            self.__dict__.pop(name, None)
        collection, labels = self._labelled(X, y, reset=True)
        weights = sample_weights(sample_weight, len(collection))
        classes, targets = sorted_classes(labels)
        if (present := len(np.unique(targets[weights > 0]))) < 2:
            raise ValueError(
                f"y must hold at least 2 classes with a positive weight, got {present} class(es); "
                f"its labels: {', '.join(map(repr, classes[:5].tolist()))}"
            )
        seed = seed_of(self.random_state)
        keys = digests(collection)
        train: WeightedSeries = merge_repeats(collection, targets, weights, keys)
        if validation_data is None:
            train, validation = self._split(train, seed)
        else:
            validation = self._validation_set(validation_data, classes, collection)
        self._train(train, validation, classes, seed)
        chosen_by = [] if validation is None else digests(validation.collection)
        self.training_digests_ = np.unique(short([*keys, *chosen_by]))
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable label of each series, (n,), in the dtype of y.

        Raises as `predict_proba` does.
        """
        probabilities = self.predict_proba(X)
        labels: NDArray[Any] = self.classes_[probabilities.argmax(axis=1)]
        return labels

    def predict_proba(self, X: Any) -> Float64[np.ndarray, "n classes"]:
        """Return the probability of each label of `classes_`; batch by batch, without gradients.

        Raises ValueError for series that do not fit the model (channels, or the length of a
        two-dimensional X), that `Collection.from_arrays` refuses, or whose values lie so far
        outside those of training that no finite score results; NotFittedError before fit.
        """
        check_is_fitted(self)
        collection = self._collection(X, reset=False)
        channels = self.model_.config.in_channels
        if collection.values.shape[1] != channels:
            raise ValueError(
                f"X has {collection.values.shape[1]} channel(s), but the model was fitted on "
                f"{channels}"
            )
        order = np.argsort(collection.lengths, kind="stable")  # neighbours need little padding
        logits = np.empty((len(collection), len(self.classes_)))
        tokens = -(-int(collection.lengths.max()) // self.model_.config.patch_length)
        batch = max(1, _PREDICT_TOKENS // tokens)
        for start in range(0, len(order), batch):
            indices = order[start : start + batch]
            part = trimmed(collection.subset(indices))
            logits[indices] = predict_logits(
                self.model_, *self._tensors(part), batch_size=batch
            ).numpy()
        bad = np.flatnonzero(~np.isfinite(logits).all(axis=1))
        if len(bad):
            raise ValueError(
                f"{len(bad)} series get no finite score, the first is series "
                f"{collection.names[bad[0]]}: its values lie too far outside those of training"
            )
        probabilities: Float64[np.ndarray, "n classes"] = softmax(logits, axis=1)
        return probabilities

    def seen_in_training(self, X: Any) -> Bool[np.ndarray, " n"]:
        """Return which of these series `fit` was given, to train on or to choose by: (n,) bool.

        A score on them says nothing about new ones.
        """
        check_is_fitted(self)
        keys = short(digests(self._collection(X, reset=False)))
        return np.isin(keys, self.training_digests_)

    def save(self, path: str | Path) -> None:
        """Save to a folder `path` (model.safetensors, config.json), whole or not at all.

        A saved model of that name is replaced. `on_epoch`, `checkpoint_dir` and a `random_state`
        that is no int are not saved. Raises ValueError if `path` holds anything but a model, or
        labels are objects other than text and numbers; NotFittedError before fit.
        """
        check_is_fitted(self)
        save_classifier(self, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Load what `save` wrote, on the CPU; it predicts the same bits.

        Raises ValueError, in one line, for a folder that is absent, damaged, foreign or of a newer
        format. Nothing in it is executed.
        """
        return load_classifier(cls, Path(path))

    # ---------------------------------------------------------------------------------------- input

    def _collection(self, X: Any, *, reset: bool) -> Collection:
        """Validate X; remember, or compare, the columns of a two-dimensional one."""
        if isinstance(X, Collection):
            return X
        collection = Collection.from_arrays(X, missing=self.missing, copy=reset)
        if is_table(X) and (reset or hasattr(self, "n_features_in_")):
            validate_data(self, X, reset=reset, skip_check_array=True)
        return collection

    def _labelled(self, X: Any, y: Any, *, reset: bool) -> tuple[Collection, NDArray[Any]]:
        """Validate series and labels."""
        if y is None and isinstance(X, Collection):
            y = X.labels
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None"
            )
        collection = self._collection(X, reset=reset)
        y = column_or_1d(y, warn=True)
        # Labels have one validator, which wants series with them.
        labels = Collection.from_arrays(np.zeros((len(collection), 1)), y).labels
        assert labels is not None
        return collection, labels

    def _validation_set(
        self, data: tuple[Any, Any] | Collection, classes: NDArray[Any], train: Collection
    ) -> WeightedSeries:
        X, y = (data, None) if isinstance(data, Collection) else data
        collection, labels = self._labelled(X, y, reset=False)
        counts = collection.values.shape[1], train.values.shape[1]
        if counts[0] != counts[1]:
            raise ValueError(f"validation_data has {counts[0]} channel(s), but X has {counts[1]}")
        unknown = sorted(set(labels.tolist()) - set(classes.tolist()), key=repr)
        if unknown:
            raise ValueError(f"validation_data has labels that y lacks: {unknown[:5]}")
        targets = np.searchsorted(classes, labels)
        return WeightedSeries(trimmed(collection), targets, np.ones(len(targets)))

    def _split(
        self, examples: WeightedSeries, seed: int
    ) -> tuple[WeightedSeries, WeightedSeries | None]:
        """Hold out the validation fraction; None where nothing is held out."""
        fraction = self.validation_fraction
        if fraction is None:
            fraction = 0.1 if len(examples) >= 1000 or self.patience is not None else 0.0
        if not 0 <= fraction < 1:
            raise ValueError(f"validation_fraction must lie in [0, 1), got {fraction!r}")
        kept, held_out = hold_out(examples.targets, fraction, np.random.default_rng(seed))
        if len(held_out) == 0:
            return examples, None
        return examples.subset(kept), examples.subset(held_out)

    def _tensors(self, series: Collection) -> tuple[Tensor, Tensor | None]:
        """Scale series and return (values, mask) for the network."""
        values, mask = series.values, series.mask
        scaling = self.scaling_ or Scaling.of(values, mask, per_series=True)
        real = None if mask.all() else torch.from_numpy(mask)
        return torch.from_numpy(scaling.apply(values, mask)), real

    # ------------------------------------------------------------------------------------- training

    def _train(
        self,
        train: WeightedSeries,
        validation: WeightedSeries | None,
        classes: NDArray[Any],
        seed: int,
    ) -> None:
        values, mask = train.collection.values, train.collection.mask
        _, channels, length = values.shape
        locked = phase_locked(train)
        config = LagformerConfig.preset(
            self.preset,
            series_length=length,
            in_channels=channels,
            num_classes=len(classes),
            phase_locked=locked,
        )
        if config.max_lag is None:
            config = replace(config, max_lag=config.num_tokens - 1)
        if config.wide_groups and len(train) < _FEW:  # a transformer has little to learn from
            config = replace(config, wide_share=_SHARE_OF_FEW)
        recipe = self._recipe(len(train), locked)
        self.scaling_ = None if self.normalize else Scaling.of(values, mask, per_series=False)
        by_class = class_weights(self.class_weight, classes, train)
        examples = self._examples(train, by_class[train.targets])
        model = new_model(config, examples, seed).to(device_of(self.device))
        with progress_line(recipe.epochs, shown=bool(self.verbose)) as update:

            def on_epoch(record: EpochRecord) -> None:
                update(record["epoch"], _summary(record, recipe.epochs))
                if self.on_epoch is not None:
                    self.on_epoch(record)

            history = fit(
                model,
                examples,
                recipe,
                seed=seed,
                validation=None if validation is None else self._examples(validation),
                folder=None if self.checkpoint_dir is None else Path(self.checkpoint_dir),
                on_epoch=on_epoch,
            )
        self.model_, self.classes_, self.history_ = model, classes, history
        derived = {"normalize": bool(self.normalize), "seed": seed}
        self.config_ = asdict(config) | asdict(recipe) | derived

    def _recipe(self, n: int, locked: bool) -> Recipe:
        """Derive what was not given from the number of training series and their phases."""
        batch, epochs = operator.index(self.batch_size), self.max_epochs
        changes: dict[str, Any] = {}
        if self.preset in ("base", "fast"):
            batch = min(batch, max(8, n // 10))
            steps = -(-n // max(batch, 1))
            if epochs is None:
                aim, least = (_LOCKED_STEPS, 30) if locked else (_STEPS, 15)
                epochs = min(max(round(aim / steps), least), 500)
        if epochs is not None:
            changes["epochs"] = operator.index(epochs)
        if self.learning_rate is not None:
            changes["learning_rate"] = self.learning_rate
        if self.patience is not None:
            changes["patience"] = operator.index(self.patience)
        changes["shift"] = not locked if self.shift is None else bool(self.shift)
        return Recipe.preset(self.preset, phase_locked=locked, batch_size=batch, **changes)

    def _examples(self, series: WeightedSeries, factor: ArrayLike = 1.0) -> Examples:
        values, mask = self._tensors(series.collection)
        weights = torch.from_numpy(series.weights * np.asarray(factor))
        return Examples(values, torch.from_numpy(series.targets), mask, weights)


def _summary(record: EpochRecord, epochs: int) -> str:
    text = f"epoch {record['epoch']}/{epochs} · loss {record['train_loss']:.3f}"
    if "validation_macro_f1" in record:
        text += f" · validation macro F1 {record['validation_macro_f1']:.3f}"
    return text
