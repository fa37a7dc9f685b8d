"""The protocol on FordA and FordB: choose on a split of the training set, refit, test once.

For every data variant, seed and method: the method is scored on a random 20 % of the training
set, fitted again on all of it, and predicts the test set. Nothing but `score_on_test` ever sees a
test label, and nothing is chosen by what it returns.

Variants: `raw` is FordA as published, whose labels leak through the number of distinct values per
series; `dithered` is FordA with N(0, 0.01²) added, which buries the leak and is the honest
headline; `fordb` has no such leak.

A run is a folder. `run.json` says what it is, `models/NAME/` holds one trained model each (weights,
history, predictions; a checkpoint while it trains), and `result.json` appears last, by renaming.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

from lagformer import __version__
from lagformer.baselines import BASELINES, Outcome, fit_baseline
from lagformer.data import Collection, dither_pair, load_ucr
from lagformer.model import Lagformer, LagformerConfig
from lagformer.results import summary, to_csv
from lagformer.scores import Score, mark, score
from lagformer.training.checkpoint import digest, write_atomically
from lagformer.training.history import EpochRecord
from lagformer.training.loop import Examples, OnEpoch, Recipe, fit, predict_logits, seeded
from lagformer.training.progress import progress_line
from lagformer.training.queue import Task, run_queue

VARIANTS = {"raw": "FordA", "dithered": "FordA", "fordb": "FordB"}
QUICK_EPOCHS = 3


@dataclass(frozen=True)
class Settings:
    """What a run computes; two runs with equal settings give equal scores.

    The first seed also gets the validation runs (and the ablations, on the first variant); every
    seed gets a final model per variant. `quick` shortens training to a few epochs: a check that
    all works, not a result. Raises ValueError for values out of range.
    """

    data: tuple[str, ...] = ("raw", "dithered")
    seeds: tuple[int, ...] = (0,)
    preset: str = "olympiad"
    epochs: int = 80
    ablations: bool = False
    quick: bool = False

    def __post_init__(self) -> None:
        for name in self.data:
            if name not in VARIANTS:
                raise ValueError(f"unknown data {name!r}; known: {', '.join(VARIANTS)}")
        if any(not 0 <= seed < 2**32 for seed in self.seeds):
            raise ValueError(f"seeds must lie in 0 … 2³²-1, got {', '.join(map(str, self.seeds))}")
        for name in ("data", "seeds"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{name} must name something, and nothing twice; got {values}")
        LagformerConfig.preset(self.preset, series_length=1)
        _ = self.recipe

    @property
    def recipe(self) -> Recipe:
        """How the models are trained."""
        return Recipe(epochs=min(self.epochs, QUICK_EPOCHS) if self.quick else self.epochs)

    @property
    def label(self) -> str:
        """A folder name that tells runs with different settings apart."""
        seeds = "+".join(map(str, self.seeds))
        words = ["forda", self.preset, "+".join(self.data), f"seeds{seeds}"]
        words += [f"{self.recipe.epochs}epochs", *["ablations"] * self.ablations]
        return "-".join([*words, *["quick"] * self.quick])


def run_forda(
    settings: Settings,
    folder: Path,
    *,
    jobs: int = 1,
    x_best: float | None = None,
    progress: bool | None = None,
) -> dict[str, Any]:
    """Run the protocol in `folder` and return what its `result.json` holds.

    Models that are finished there are reused, an interrupted one is resumed; the scores do not
    depend on `jobs`, the number of models trained at once (one thread each). `x_best` adds the
    mark 100·(X − 0.5)/(x_best − 0.5). `progress` as in `progress_line`.

    Raises ValueError for a folder that holds anything but a run with these settings on this data,
    and for a damaged checkpoint.
    """
    if x_best is not None:
        mark(0.5, x_best)  # a bad value is refused before hours of work
    splits = {name: load_split(name) for name in settings.data}
    _claim(folder, settings, splits)
    plans = _plans(settings, splits)
    rows = [
        _row(variant, seed, where, method, "", fit_baseline(build(seed), *part), splits)
        for variant in settings.data
        for seed in settings.seeds
        for where, part in _parts(splits[variant], seed).items()
        for method, build in BASELINES.items()
    ]
    outcomes = _train_all(plans, splits, folder, jobs, progress)
    rows += [
        _row(p.variant, p.seed, p.where, p.method, settings.preset, outcomes[p.name], splits)
        for p in plans
    ]
    if x_best is not None:
        for row in rows:
            row["mark"] = mark(row["macro_f1"], x_best)
    result = {
        "lagformer": __version__,
        "torch": torch.__version__,
        "settings": asdict(settings),
        "x_best": x_best,
        "warnings": _warnings(settings),
        "rows": rows,
        "summary": summary(rows),
    }
    for where, file in (("test", "forda.csv"), ("validation", "validation.csv")):
        write_atomically(folder / file, to_csv(rows, where).encode())
    write_atomically(folder / "result.json", json.dumps(result, indent=1).encode())
    return result


# ------------------------------------------------------------------------------------------ data


@dataclass(frozen=True)
class Split:
    """The official split of a data variant, without the test labels."""

    train: Collection
    labels: NDArray[Any]
    """Of the training series."""
    test: Collection

    @property
    def classes(self) -> NDArray[Any]:
        """The labels that occur, sorted."""
        return np.unique(self.labels)

    @property
    def targets(self) -> NDArray[np.int64]:
        """Class indices of the training series."""
        return np.searchsorted(self.classes, self.labels)


def load_split(variant: str) -> Split:
    """Load a data variant: its training set, and its test set without labels."""
    train, test = load_ucr(VARIANTS[variant])
    if variant == "dithered":
        train, test = dither_pair(train, test)
    assert train.labels is not None  # the first column of every UCR file
    return Split(train, train.labels, replace(test, labels=None))


def score_on_test(variant: str, predicted: NDArray[Any]) -> Score:
    """Score predicted labels on the official test set: the one place that reads its labels."""
    _, test = load_ucr(VARIANTS[variant])
    assert test.labels is not None
    return score(test.labels, predicted)


def _parts(split: Split, seed: int) -> dict[str, tuple[Collection, NDArray[np.int64], Collection]]:
    """Return what is fitted and what is predicted, for the validation run and for the test."""
    fit_on, held_out = _validation_indices(split, seed)
    return {
        "validation": (
            split.train.subset(fit_on),
            split.targets[fit_on],
            replace(split.train.subset(held_out), labels=None),
        ),
        "test": (split.train, split.targets, split.test),
    }


def _validation_indices(split: Split, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    fit_on, held_out = train_test_split(
        np.arange(len(split.train)), test_size=0.2, random_state=seed
    )
    return fit_on, held_out


# ---------------------------------------------------------------------------------------- models


@dataclass(frozen=True)
class Plan:
    """A model to train."""

    variant: str
    seed: int
    where: str
    """"validation" or "test": what it predicts."""
    method: str
    config: LagformerConfig
    recipe: Recipe

    @property
    def name(self) -> str:
        """Its folder's name."""
        return f"{self.variant}-seed{self.seed}-{self.where}-{self.method}"


def _plans(settings: Settings, splits: dict[str, Split]) -> list[Plan]:
    """List the models, the longest trainings first: they fill the processes best."""
    recipe, plans = settings.recipe, []
    for variant, split in splits.items():
        _, channels, length = split.train.values.shape
        config = LagformerConfig.preset(
            settings.preset,
            series_length=length,
            in_channels=channels,
            num_classes=len(split.classes),
        )
        for seed in settings.seeds:
            plans.append(Plan(variant, seed, "test", "lagformer", config, recipe))
        first = Plan(variant, settings.seeds[0], "validation", "lagformer", config, recipe)
        plans.append(first)
        if settings.ablations and variant == settings.data[0]:
            half = replace(recipe, epochs=-(-recipe.epochs // 2))
            finer = replace(config, patch_length=-(-config.patch_length // 2))
            plain = replace(half, shift=False, amplitude=None)
            plans += [
                replace(first, method="half-patches", config=finer),
                replace(first, method="half-epochs", recipe=half),
                replace(first, method="half-epochs-plain", recipe=plain),
                replace(first, method="toeplitz", config=replace(config, attention="toeplitz")),
            ]
    return sorted(plans, key=lambda p: -_work(p, splits[p.variant]))


def _work(plan: Plan, split: Split) -> float:
    """Return the cost of a training: tokens seen, in units of one pass over all of them."""
    share = 0.8 if plan.where == "validation" else 1.0
    return plan.recipe.epochs * len(split.train) * plan.config.num_tokens * share


def _train_all(
    plans: Sequence[Plan],
    splits: dict[str, Split],
    folder: Path,
    jobs: int,
    progress: bool | None,
) -> dict[str, Outcome]:
    """Train what is not finished yet, `jobs` at a time, under one progress line."""
    outcomes, tasks = {}, []
    for plan in plans:
        home = folder / "models" / plan.name
        if (home / "outcome.json").exists():
            outcomes[plan.name] = _read_outcome(home / "outcome.json")
        else:
            train, targets, unseen = _parts(splits[plan.variant], plan.seed)[plan.where]
            series = [(part.values.astype(np.float32), part.mask) for part in (train, unseen)]
            tasks.append(Task(plan.name, train_model, (plan, home, targets, *series)))
    work = {plan.name: _work(plan, splits[plan.variant]) for plan in plans}
    epochs = {plan.name: plan.recipe.epochs for plan in plans}
    seen: dict[str, EpochRecord] = {}
    with progress_line(sum(work[task.name] for task in tasks) or 1, shown=progress) as update:

        def on_epoch(name: str, record: EpochRecord) -> None:
            seen[name] = record
            done = sum(work[n] * r["epoch"] / epochs[n] for n, r in seen.items())
            finished = len(outcomes) + sum(r["epoch"] == epochs[n] for n, r in seen.items())
            current = f"epoch {record['epoch']}/{epochs[name]} · {name}"
            update(done, f"{finished}/{len(plans)} models · {current}")

        outcomes |= run_queue(tasks, jobs=jobs, on_epoch=on_epoch)
    return outcomes


def train_model(
    plan: Plan,
    folder: Path,
    targets: NDArray[np.int64],
    train: tuple[NDArray[np.float32], NDArray[np.bool_]],
    unseen: tuple[NDArray[np.float32], NDArray[np.bool_]],
    on_epoch: OnEpoch,
) -> Outcome:
    """Train the planned model on (values, mask), predict the unseen series, leave both in `folder`.

    Leaves `model.safetensors`, `history.jsonl` and, last, `outcome.json`; resumes from the
    checkpoint of an interrupted call.
    """
    with seeded(plan.seed):
        model = Lagformer(plan.config)
    examples = Examples(
        torch.from_numpy(train[0]), torch.from_numpy(targets), torch.from_numpy(train[1])
    )
    history = fit(model, examples, plan.recipe, seed=plan.seed, folder=folder, on_epoch=on_epoch)
    began = time.perf_counter()
    values, mask = (torch.from_numpy(array) for array in unseen)
    logits = predict_logits(model, values, None if mask.all() else mask)
    outcome = Outcome(
        predicted=logits.argmax(dim=1).tolist(),
        parameters=sum(p.numel() for p in model.parameters()),
        fit_seconds=sum(record["seconds"] for record in history),
        predict_seconds=time.perf_counter() - began,
    )
    weights = safetensors.torch.save(model.state_dict(), {"config": plan.config.to_json()})
    write_atomically(folder / "model.safetensors", weights)
    write_atomically(folder / "outcome.json", json.dumps(asdict(outcome)).encode())
    (folder / "checkpoint.safetensors").unlink()
    return outcome


def _read_outcome(path: Path) -> Outcome:
    try:
        return Outcome(**json.loads(path.read_text("utf-8")))
    except (ValueError, TypeError):
        raise ValueError(
            f"{path} is damaged; remove its folder to train that model again"
        ) from None


# ------------------------------------------------------------------------------------ the folder


def _claim(folder: Path, settings: Settings, splits: dict[str, Split]) -> None:
    """Make `folder` the home of this run, or find that it is; refuse any other."""
    data = {
        name: digest(
            {"values": torch.from_numpy(s.train.values), "test": torch.from_numpy(s.test.values)}
        )
        for name, s in splits.items()
    }
    run = {"lagformer": __version__, "settings": asdict(settings), "data": data}
    expected = json.dumps(run, indent=1)
    path = folder / "run.json"
    if path.exists():
        if path.read_text("utf-8") != expected:
            raise ValueError(
                f"{folder} holds a run with other settings or data (see its run.json); choose "
                "another folder or remove it"
            )
        return
    if folder.exists() and any(p.name != "run.json.tmp" for p in folder.iterdir()):
        raise ValueError(f"{folder} holds other files and no run; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(path, expected.encode())


def _row(
    variant: str,
    seed: int,
    where: str,
    method: str,
    preset: str,
    outcome: Outcome,
    splits: dict[str, Split],
) -> dict[str, Any]:
    """Score an outcome and lay it out as a row of the result."""
    split = splits[variant]
    predicted = split.classes[outcome.predicted]
    if where == "test":
        scores = score_on_test(variant, predicted)
    else:
        scores = score(split.labels[_validation_indices(split, seed)[1]], predicted)
    row = {"method": method, "preset": preset, "data": variant, "seed": seed, "split": where}
    costs = asdict(outcome)
    del costs["predicted"]
    return row | asdict(scores) | costs


def _warnings(settings: Settings) -> list[str]:
    warnings = []
    if settings.quick:
        warnings.append(
            f"a quick check of {settings.recipe.epochs} epochs: these numbers are not the result"
        )
    if "raw" in settings.data:
        warnings.append(
            "raw FordA leaks its labels (series of class -1 hold fewer distinct values, in train "
            "and test alike): quote the dithered score"
        )
    return warnings
