"""A model on disk: a folder with `model.safetensors` and `config.json`, whole or absent.

`config.json` names its format and holds a SHA-256 over everything else, tensors included. Nothing
in a folder is ever executed.
"""

from __future__ import annotations

import glob
import json
import operator
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar
from uuid import uuid4

import numpy as np
import safetensors
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor

from lagformer import __version__
from lagformer.model import Lagformer, LagformerConfig
from lagformer.preprocessing import Scaling
from lagformer.training.checkpoint import digest

if TYPE_CHECKING:
    from lagformer.classifier import LagformerClassifier

FORMAT = 1
"""Raised when older versions could not read what is written."""

_NAME = "lagformer classifier"
_FILES = {"model.safetensors", "config.json"}
Classifier = TypeVar("Classifier", bound="LagformerClassifier")


def save_classifier(classifier: LagformerClassifier, folder: Path) -> None:
    """Write a fitted classifier to `folder`; see `LagformerClassifier.save`."""
    parameters = classifier.get_params() | {"on_epoch": None, "checkpoint_dir": None}
    if isinstance(classifier.random_state, np.random.RandomState):
        parameters["random_state"] = None
    if isinstance(classifier.class_weight, dict):  # JSON's keys are all text
        parameters["class_weight"] = list(classifier.class_weight.items())
    names = getattr(classifier, "feature_names_in_", None)
    config = {
        "parameters": parameters,
        "model": asdict(classifier.model_.config),
        "classes": encode_labels(classifier.classes_),
        "config": classifier.config_,
        "history": classifier.history_,
        "n_features_in": getattr(classifier, "n_features_in_", None),
        "feature_names_in": None if names is None else names.tolist(),
    }
    tensors = {f"model.{name}": t for name, t in classifier.model_.state_dict().items()}
    tensors["training_digests"] = torch.from_numpy(classifier.training_digests_)
    if classifier.scaling_ is not None:
        tensors["scaling.mean"] = torch.from_numpy(classifier.scaling_.mean)
        tensors["scaling.scale"] = torch.from_numpy(classifier.scaling_.scale)
    # numpy's scalars, which a parameter grid may hold, become Python's
    plain = json.loads(json.dumps(config, default=operator.methodcaller("item")))
    write_model(folder, tensors, plain)


def load_classifier(cls: type[Classifier], folder: Path) -> Classifier:
    """Return the classifier that `save_classifier` was given; see `LagformerClassifier.load`."""
    tensors, config = read_model(folder)
    try:
        parameters = config["parameters"]
        if isinstance(parameters["class_weight"], list):
            parameters["class_weight"] = dict(parameters["class_weight"])
        classifier = cls(**parameters)
        with torch.device("meta"):  # no memory, no random numbers
            model = Lagformer(LagformerConfig(**config["model"]))
        prefix = "model."
        weights = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        model.load_state_dict(weights, assign=True)
        classifier.model_ = model.eval()
        classifier.classes_ = decode_labels(config["classes"])
        classifier.config_ = config["config"]
        classifier.history_ = config["history"]
        classifier.training_digests_ = tensors["training_digests"].numpy()
        classifier.scaling_ = None
        if not classifier.config_["normalize"]:
            mean, scale = (tensors[f"scaling.{name}"].numpy() for name in ("mean", "scale"))
            classifier.scaling_ = Scaling(mean, scale)
        if config["n_features_in"] is not None:
            classifier.n_features_in_ = config["n_features_in"]
        if config["feature_names_in"] is not None:
            classifier.feature_names_in_ = np.array(config["feature_names_in"], dtype=object)
    except (KeyError, TypeError, RuntimeError) as error:
        what = " ".join(str(error).split())
        raise ValueError(f"{folder} is no model of this version: {what}") from None
    return classifier


def write_model(folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """Write tensors and a JSON-able config to `folder` by renaming a finished one into place.

    A model that was there is replaced; between two renames it lies beside, under a hidden name.
    Raises ValueError if `folder` holds anything else than a model; OSError if it cannot be written.
    """
    check_target(folder)
    copies = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    content = {"name": _NAME, "format": FORMAT, "lagformer": __version__, **config}
    content["checksum"] = digest(copies, json.dumps(content, sort_keys=True))
    folder = folder.absolute()
    new, old = (folder.with_name(f".{folder.name}.{uuid4().hex}.{x}.tmp") for x in ("new", "old"))
    new.mkdir(parents=True)
    try:
        _write(new / "model.safetensors", safetensors.torch.save(copies))
        _write(new / "config.json", json.dumps(content, indent=1).encode())
        _flush_folder(new)
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
        _flush_folder(folder.parent)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def check_target(folder: Path) -> None:
    """Raise ValueError if a model cannot be saved as `folder` without losing something else."""
    if folder.is_dir():
        if other := sorted({path.name for path in folder.iterdir()} - _FILES):
            raise ValueError(f"{folder} holds {other[0]}, which is no model: choose another name")
    elif folder.exists() or folder.is_symlink():
        raise ValueError(f"{folder} is a file: a model is saved as a folder, choose another name")


def read_model(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return what `write_model` wrote, tensors on the CPU.

    Raises ValueError, in one line that names the folder, for a folder that is absent, foreign, of a
    newer format, or damaged by as little as a bit.
    """
    try:
        # Once each: a file that is replaced between two reads would be a mixture.
        text = (folder / "config.json").read_bytes()
        weights = (folder / "model.safetensors").read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        absent = f"{folder} is no saved model"
        replaced = sorted(folder.parent.glob(f".{glob.escape(folder.name)}.*.old.tmp"))
        if replaced and not folder.exists():  # a save died between its two renames
            raise ValueError(
                f"{absent}: rename {replaced[-1]} to it, the whole one before"
            ) from None
        raise ValueError(f"{absent}: that is a folder of {' and '.join(sorted(_FILES))}") from None
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):  # not UTF-8, not JSON, or nested without end
        raise ValueError(f"{folder} is damaged: config.json is not JSON") from None
    if not isinstance(config, dict) or config.get("name") != _NAME:
        raise ValueError(f"{folder} is no model of lagformer: its config.json is another program's")
    if not isinstance(config.get("format"), int) or config["format"] > FORMAT:
        raise ValueError(
            f"{folder} was saved by lagformer {config.get('lagformer')} in format "
            f"{config.get('format')!r}; this version reads up to {FORMAT}: upgrade lagformer"
        )
    try:
        tensors = safetensors.torch.load(weights)
    except safetensors.SafetensorError as error:
        raise ValueError(f"{folder} is damaged: model.safetensors: {error}") from None
    checksum = config.pop("checksum", None)
    if checksum != digest(tensors, json.dumps(config, sort_keys=True)):
        raise ValueError(f"{folder} is damaged: its content does not match its checksum")
    return tensors, config


def encode_labels(labels: NDArray[Any]) -> dict[str, Any]:
    """Return labels and their dtype as JSON. ValueError for objects that are no text or number."""
    values = labels.tolist()
    if odd := [v for v in values if not isinstance(v, str | int | float)]:
        raise ValueError(f"labels of type {type(odd[0]).__name__} cannot be saved: {odd[0]!r}")
    return {"dtype": labels.dtype.str, "values": values}


def decode_labels(content: Mapping[str, Any]) -> NDArray[Any]:
    """Return the labels that `encode_labels` was given."""
    return np.array(content["values"], dtype=np.dtype(content["dtype"]))


@contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """Open a text file that takes the place of `path` at the end, unless an error comes first."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    """Make the names in `folder` survive a power cut (where folders can be opened)."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
