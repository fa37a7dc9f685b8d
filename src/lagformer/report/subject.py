"""What a report is about: a run folder of `lagformer forda`, or a saved model, finished or not."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lagformer.classifier import LagformerClassifier
from lagformer.data import Collection, load_ucr
from lagformer.data.ucr import available_ucr
from lagformer.experiment import Settings
from lagformer.outcomes import read_outcome
from lagformer.preprocessing import Scaling, digests, short
from lagformer.report.figures_lags import load_model
from lagformer.splits import VARIANTS, Split, load_split
from lagformer.training.checkpoint import digest, load_checkpoint
from lagformer.training.history import EpochRecord, read_history

HONEST_FIRST = ("dithered", "fordb", "raw")
"""The variants of a run, the one whose score to quote first."""


@dataclass(frozen=True)
class Curve:
    """The history of one training."""

    name: str
    records: list[EpochRecord]
    epochs: int | None
    """That it was to have; None if that is not known."""

    @property
    def finished(self) -> bool:
        """Whether all epochs are there, or patience ended it."""
        last: EpochRecord = self.records[-1] if self.records else {}
        return "stopped" in last or len(self.records) == self.epochs


@dataclass(frozen=True)
class Subject:
    """A trained model with the data it is scored on, and all that is known of its making."""

    path: Path
    title: str
    command: str
    """That trains it again."""
    facts: dict[str, Any]
    """Settings and versions."""
    curves: list[Curve] = field(default_factory=list)
    """Of the model first, then of others of the same run."""
    stopped: str = ""
    """Why this is not all there should be; empty if it is."""
    warnings: list[str] = field(default_factory=list)
    model: LagformerClassifier | None = None
    """None before the end of training: an unfinished model is not scored."""
    train: Collection | None = None
    """The training split, where it is known."""
    test: Collection | None = None
    """The labelled series it is scored on."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """The results of a run (`run_forda`)."""
    changed: int = 0
    """Predictions that differ from those the run made."""


def is_run(path: Path) -> bool:
    """Whether this is a run folder of `lagformer forda`."""
    return (path / "run.json").is_file()


# ------------------------------------------------------------------------------------------- runs


def open_run(path: Path, variant: str | None = None) -> Subject:
    """Open a run folder; the model is the first seed's, of `variant` or of the most honest one.

    In a run that was stopped, honest counts among the variants that got furthest.

    Raises ValueError for a damaged folder, a variant that the run lacks, and a run in which no
    model has finished an epoch.
    """
    run = _json(path / "run.json")
    try:
        settings = Settings(**{k: _tuple(v) for k, v in run["settings"].items()})
        recorded = {name: str(run["data"][name]) for name in settings.data}
    except (KeyError, TypeError, AttributeError):
        raise ValueError(f"{path / 'run.json'} is not of this version of lagformer") from None
    if variant is None:
        variant = _furthest(path / "models", [v for v in HONEST_FIRST if v in settings.data])
    if variant not in settings.data:
        raise ValueError(
            f"{path} holds no model of {variant!r}: --data takes {' or '.join(settings.data)} here"
        )
    result = _json(path / "result.json") if (path / "result.json").exists() else {}
    models = path / "models"
    homes = [
        models / f"{variant}-seed{seed}-{where}-lagformer"
        for where in ("test", "validation")
        for seed in settings.seeds
    ]
    shown = next(
        (h for h in homes if "-test-" in h.name and read_outcome(h, probabilities=False)), None
    )
    begun = sorted(homes, key=lambda home: home != shown)
    curves = [
        Curve(home.name, read_history(home / "history.jsonl"), settings.recipe.epochs)
        for home in begun
        if (home / "history.jsonl").exists()
    ]
    curves = [curve for curve in curves if curve.records]
    if not curves:
        raise ValueError(
            f"no model of {path} has finished an epoch yet: there is nothing to report"
        )
    stopped = ""
    if not result:
        done = len(list(models.glob("*/outcome.json")))
        planned = f" of {len(run['models'])}" if "models" in run else ""
        stopped = (
            f"The run has not ended: {done}{planned} models are trained. The same command again "
            "resumes it."
        )
    split = load_split(variant)
    title = VARIANTS[variant] if variant == "fordb" else f"{VARIANTS[variant]}, {variant}"
    warnings = list(result.get("warnings", []))
    tensors = {"values": split.train.values, "test": split.test.values}
    if digest({k: torch.from_numpy(v) for k, v in tensors.items()}) != recorded[variant]:
        warnings.append("the data on this machine are not those the run was made with")
    subject = Subject(
        path=path,
        title=title,
        command=_forda_command(settings, path),
        facts={
            **_flat(run["settings"]),
            **_flat(asdict(settings.recipe)),
            "lagformer, at training": run.get("lagformer", "unknown"),
            **({"torch, at training": result["torch"]} if "torch" in result else {}),
            "SHA-256 of the data": recorded[variant],
        },
        curves=curves,
        stopped=stopped,
        warnings=[w for w in warnings if variant == "raw" or not w.startswith("raw ")],
        train=split.train,
        rows=[row for row in result.get("rows", []) if row["split"] == "test"],
    )
    if shown is None:
        return subject
    seed = int(shown.name.split("-")[1].removeprefix("seed"))
    model = _as_classifier(shown, settings, seed, split, curves[0].records)
    outcome = read_outcome(shown, probabilities=False)
    assert outcome is not None  # `shown` has one
    now = model.predict_proba(split.test).argmax(axis=1)
    labels = load_ucr(VARIANTS[variant])[1].labels  # for `evaluate`; no choice is left to be made
    return replace(
        subject,
        title=f"{title}, seed {seed}",
        model=model,
        test=replace(split.test, labels=labels),
        changed=int((now != outcome.predicted).sum()),
        facts={"seed of the model shown": seed, **asdict(model.model_.config), **subject.facts},
    )


def _furthest(models: Path, variants: Sequence[str]) -> str:
    """Return the first variant with a finished final model, else with an epoch of any model."""
    for pattern in ("test-lagformer/outcome.json", "*-lagformer/history.jsonl"):
        for variant in variants:
            if any(p.stat().st_size for p in models.glob(f"{variant}-seed*-{pattern}")):
                return variant
    return variants[0]


def _as_classifier(
    home: Path,
    settings: Settings,
    seed: int,
    split: Split,
    records: list[EpochRecord],
) -> LagformerClassifier:
    """Make a run's model a classifier: series as they come, which is how it was trained."""
    network = load_model(home / "model.safetensors")
    classifier = LagformerClassifier(settings.preset, random_state=seed)
    classifier.model_, classifier.classes_, classifier.history_ = network, split.classes, records
    classifier.scaling_ = Scaling(np.zeros((1, 1, 1)), np.ones((1, 1, 1)))
    classifier.training_digests_ = short(digests(split.train))
    return classifier


def _forda_command(settings: Settings, path: Path) -> str:
    words = ["lagformer", "forda", "--data", ",".join(settings.data)]
    words += ["--seeds", ",".join(map(str, settings.seeds)), "--preset", settings.preset]
    words += [] if settings.epochs is None else ["--epochs", str(settings.epochs)]
    words += ["--ablations"] * settings.ablations
    return shlex.join([*words, *["--quick"] * settings.quick, "--out", str(path)])


# ----------------------------------------------------------------------------------------- models


def open_model(path: Path, data: Collection | None = None) -> Subject:
    """Open a model folder, or what an interrupted `lagformer train` left as MODEL.partial.

    `data` is what it is scored on; by default the test split of the UCR set it was trained on,
    which is known by its series. Raises ValueError for a damaged or absent folder, and where there
    is no such set and no `data`.
    """
    partial = path if path.suffix == ".partial" else path.with_name(f"{path.name}.partial")
    if not (path / "config.json").exists() and (partial / "history.jsonl").exists():
        return _open_partial(partial, data)
    model = LagformerClassifier.load(path)
    known = trained_on(model)
    if known is None and data is None:
        raise ValueError(
            f"what {path} was trained on is no UCR set of this machine: name labelled data to "
            "score it on with --data"
        )
    train, test = known if known is not None else (None, None)
    scored = test if data is None else data
    assert scored is not None
    parameters = model.get_params()
    stopped = str(model.history_[-1].get("stopped", ""))
    return Subject(
        path=path,
        title=_name_of(scored),
        command=_train_command(parameters, "DATA" if train is None else _name_of(train), path),
        facts={
            "trained on": "data this machine does not know"
            if train is None
            else Path(train.source).name,
            "scored on": Path(scored.source).name or "arrays",
            **_flat(model.config_),
            **{f"parameter {k}": v for k, v in _flat(parameters).items() if v is not None},
            "lagformer, at training": _json(path / "config.json")["lagformer"],
        },
        curves=[Curve(path.name, model.history_, model.config_["epochs"])],
        warnings=[f"Training ended by patience: {stopped}."] if stopped else [],
        model=model,
        train=train,
        test=scored,
    )


def trained_on(model: LagformerClassifier) -> tuple[Collection, Collection] | None:
    """Return the UCR set (train, test) whose training series, all of them, the model was given."""
    missing = "mask" if model.missing == "error" else model.missing
    channels, length = (model.config_[k] for k in ("in_channels", "series_length"))
    for name in available_ucr():
        try:
            train, test = load_ucr(name, missing=missing)
        except ValueError:  # a malformed file of the user's: not what the model was trained on
            continue
        if (
            (train.values.shape[1], train.lengths.max()) == (channels, length)
            and np.array_equal(np.unique(train.labels), model.classes_)  # type: ignore[arg-type]
            and model.seen_in_training(train).all()
        ):
            return train, test
    return None


def _open_partial(partial: Path, data: Collection | None) -> Subject:
    """An interrupted training: its curves; it is resumed, not scored."""
    records = read_history(partial / "history.jsonl")
    if not records:
        raise ValueError(f"{partial} has not finished an epoch yet: there is nothing to report")
    epochs = None
    if (partial / "checkpoint.safetensors").exists():
        schedule = load_checkpoint(partial / "checkpoint.safetensors")[1]["scheduler"]
        epochs = round(len(records) * schedule["total_steps"] / schedule["last_epoch"])
    name = partial.name.removesuffix(".partial")
    return Subject(
        path=partial,
        title=name,
        command=f"lagformer train DATA --out {shlex.quote(str(partial.with_name(name)))}",
        facts={},
        curves=[Curve(name, records, epochs)],
        stopped=(
            f"Training was stopped after epoch {len(records)}"
            + (f" of {epochs}" if epochs else "")
            + ". The `lagformer train` command that began it, given again, resumes it."
        ),
        train=data,
    )


def _train_command(parameters: dict[str, Any], data: str, path: Path) -> str:
    options = {
        "--preset": parameters["preset"],
        "--epochs": parameters["max_epochs"],
        "--batch-size": parameters["batch_size"],
        "--learning-rate": parameters["learning_rate"],
        "--validation": parameters["validation_fraction"],
        "--patience": parameters["patience"],
        "--missing": parameters["missing"],
        "--seed": parameters["random_state"],
    }
    words = ["lagformer", "train", data, "--out", str(path)]
    words += [w for k, v in options.items() if v is not None for w in (k, str(v))]
    words += ["--class-weight", "balanced"] * (parameters["class_weight"] == "balanced")
    words += ["--normalize"] * bool(parameters["normalize"])
    return shlex.join([*words, *["--no-shift"] * (not parameters["shift"])])


# ------------------------------------------------------------------------------------------ helpers


def _name_of(data: Collection) -> str:
    stem = Path(data.source).stem if data.source else "data"
    return stem.removesuffix("_TRAIN").removesuffix("_TEST")


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except (ValueError, OSError):
        raise ValueError(f"{path} is damaged or not readable: it should hold JSON") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged: it should hold a JSON object")
    return content


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings with lists as text."""
    return {
        k: ", ".join(map(str, v)) if isinstance(v, list | tuple) else v for k, v in settings.items()
    }
