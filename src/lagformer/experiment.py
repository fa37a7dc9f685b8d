"""The protocol on FordA and FordB: choose on a split of the training set, refit, test once.

For every data variant, seed and method: the method is scored on a random 20 % of the training
set, fitted again on all of it, and predicts the test set. Nothing but `score_on_test` ever sees a
test label, and nothing is chosen by what it returns.

A run is a folder. `run.json` says what it is, `models/NAME/` holds one trained model each (weights,
history, predictions; a checkpoint while it trains), `peers/NAME/` what a peer predicted, and
`result.json` appears last, by renaming.
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

from lagformer import __version__
from lagformer.baselines import BASELINES, fit_baseline
from lagformer.data import load_ucr
from lagformer.model import LagformerConfig
from lagformer.outcomes import Outcome, ensemble, read_outcome, write_outcome
from lagformer.peers import PEERS, require_aeon, run_peer
from lagformer.results import ENSEMBLE, summary, to_csv
from lagformer.scores import Score, mark, score
from lagformer.splits import VARIANTS, Split, load_split
from lagformer.training.checkpoint import digest, write_atomically
from lagformer.training.history import EpochRecord
from lagformer.training.lock import alone_in
from lagformer.training.loop import Examples, OnEpoch, fit, new_model, predict_logits
from lagformer.training.progress import progress_line
from lagformer.training.queue import Task, run_queue
from lagformer.training.recipe import Recipe

QUICK_EPOCHS = 3


@dataclass(frozen=True)
class Settings:
    """What a run computes; two runs with equal settings give equal scores.

    The first seed also gets the validation runs (and the ablations, on the first variant); every
    seed gets a final model per variant, and several seeds an ensemble of them. `epochs=None` takes
    those of the preset's recipe. The ablations are variations of the `olympiad` preset. `quick`
    shortens training to a few epochs: a check that all works, not a result. Raises ValueError for
    values out of range.
    """

    data: tuple[str, ...] = ("raw", "dithered")
    seeds: tuple[int, ...] = (0,)
    preset: str = "olympiad"
    epochs: int | None = None
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
        if self.ablations and self.preset != "olympiad":
            raise ValueError(
                f"the ablations vary the published recipe: preset olympiad, not {self.preset}"
            )
        _ = self.recipe

    @property
    def recipe(self) -> Recipe:
        """How the models are trained."""
        recipe = Recipe.preset(self.preset)
        if self.epochs is not None:
            recipe = replace(recipe, epochs=self.epochs)
        return replace(recipe, epochs=min(recipe.epochs, QUICK_EPOCHS)) if self.quick else recipe

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
    peer_seeds: Sequence[int] = (),
    x_best: float | None = None,
    progress: bool | None = None,
) -> dict[str, Any]:
    """Run the protocol in `folder` and return what its `result.json` holds.

    Models that are finished there are reused, an interrupted one is resumed; the scores do not
    depend on `jobs`, the number of models trained at once (one thread each). `peer_seeds` adds
    aeon's classifiers with these seeds, fitted on all of the training set; like `x_best`, which
    adds the mark 100·(X − 0.5)/(x_best − 0.5), it can be asked of a finished run too. `progress`
    as in `progress_line`.

    Raises ValueError for a folder that another process works in, or that holds anything but a run
    with these settings on this data, for a damaged file of a model, and for peers without aeon.
    """
    if peer_seeds:
        require_aeon()
    if x_best is not None:
        mark(0.5, x_best)  # a bad value is refused before hours of work
    splits = {name: load_split(name) for name in settings.data}
    plans = _plans(settings, splits)
    with alone_in(folder):
        _claim(folder, settings, plans, splits)
        rows = [
            _row(variant, seed, where, method, "", fit_baseline(build(seed), *part), splits)
            for variant in settings.data
            for seed in settings.seeds
            for where, part in splits[variant].parts(seed).items()
            for method, build in BASELINES.items()
        ]
        outcomes = _train_all(plans, splits, folder, jobs, progress)
        rows += [
            _row(p.variant, p.seed, p.where, p.method, settings.preset, outcomes[p.name], splits)
            for p in plans
        ]
        if len(settings.seeds) > 1:
            for variant in settings.data:
                models = [p for p in plans if (p.variant, p.where) == (variant, "test")]
                together = ensemble([outcomes[p.name] for p in models])
                seeds = "+".join(map(str, settings.seeds))
                rows.append(
                    _row(variant, seeds, "test", ENSEMBLE, settings.preset, together, splits)
                )
        peers = _fit_peers(settings.data, peer_seeds, splits, folder, jobs, progress)
        rows += [
            _row(variant, seed, "test", method, "", outcome, splits)
            for (variant, seed, method), outcome in peers.items()
        ]
        if x_best is not None:
            for row in rows:
                row["mark"] = mark(row["macro_f1"], x_best)
        result = {
            "lagformer": __version__,
            "torch": torch.__version__,
            "settings": asdict(settings),
            "peer_seeds": list(peer_seeds),
            "x_best": x_best,
            "warnings": _warnings(settings),
            "rows": rows,
            "summary": summary(rows),
        }
        for where, file in (("test", "forda.csv"), ("validation", "validation.csv")):
            write_atomically(folder / file, to_csv(rows, where).encode())
        write_atomically(folder / "result.json", json.dumps(result, indent=1).encode())
        return result


def score_on_test(variant: str, predicted: NDArray[Any]) -> Score:
    """Score predicted labels on the official test set: the one place that reads its labels."""
    _, test = load_ucr(VARIANTS[variant])
    assert test.labels is not None
    return score(test.labels, predicted)


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
    outcomes: dict[str, Outcome] = {}
    tasks = []
    for plan in plans:
        home = folder / "models" / plan.name
        if outcome := read_outcome(home, probabilities=True):
            outcomes[plan.name] = outcome
        else:
            train, targets, unseen = splits[plan.variant].parts(plan.seed)[plan.where]
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
    examples = Examples(
        torch.from_numpy(train[0]), torch.from_numpy(targets), torch.from_numpy(train[1])
    )
    model = new_model(plan.config, examples, plan.seed)
    history = fit(model, examples, plan.recipe, seed=plan.seed, folder=folder, on_epoch=on_epoch)
    began = time.perf_counter()
    values, mask = (torch.from_numpy(array) for array in unseen)
    logits = predict_logits(model, values, None if mask.all() else mask)
    probabilities = logits.double().softmax(dim=1)
    outcome = Outcome(
        predicted=probabilities.argmax(dim=1).tolist(),
        parameters=model.num_parameters,
        fit_seconds=sum(record["seconds"] for record in history),
        predict_seconds=time.perf_counter() - began,
        probabilities=probabilities.tolist(),
    )
    weights = safetensors.torch.save(model.state_dict(), {"config": plan.config.to_json()})
    write_atomically(folder / "model.safetensors", weights)
    write_outcome(outcome, folder)
    (folder / "checkpoint.safetensors").unlink()
    return outcome


# ----------------------------------------------------------------------------------------- peers


def _fit_peers(
    variants: Sequence[str],
    seeds: Sequence[int],
    splits: dict[str, Split],
    folder: Path,
    jobs: int,
    progress: bool | None,
) -> dict[tuple[str, int, str], Outcome]:
    """Fit the peers that are not finished yet, `jobs` at a time; by variant, seed and method."""
    outcomes, tasks = {}, []
    wanted = {
        f"{variant}-seed{seed}-{method}": (variant, seed, method)
        for variant in variants
        for seed in seeds
        for method in PEERS
    }
    for name, (variant, seed, method) in wanted.items():
        home = folder / "peers" / name
        if outcome := read_outcome(home, probabilities=False):
            outcomes[name] = outcome
        else:
            split = splits[variant]
            series = (split.targets, split.train.values, split.test.values)
            tasks.append(Task(name, run_peer, (method, seed, home, *series)))
    with progress_line(len(wanted) or 1, shown=progress) as update:
        finished = len(outcomes)

        def on_epoch(name: str, record: EpochRecord) -> None:
            nonlocal finished
            finished += 1
            update(finished, f"{finished}/{len(wanted)} peers · {name}")

        outcomes |= run_queue(tasks, jobs=jobs, on_epoch=on_epoch)
    return {key: outcomes[name] for name, key in wanted.items()}


# ------------------------------------------------------------------------------------ the folder


def _claim(
    folder: Path, settings: Settings, plans: Sequence[Plan], splits: dict[str, Split]
) -> None:
    """Make `folder` the home of this run, or find that it is; refuse any other."""
    data = {
        name: digest(
            {"values": torch.from_numpy(s.train.values), "test": torch.from_numpy(s.test.values)}
        )
        for name, s in splits.items()
    }
    models = {p.name: {"config": asdict(p.config), "recipe": asdict(p.recipe)} for p in plans}
    run = {"lagformer": __version__, "settings": asdict(settings), "models": models, "data": data}
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
    seed: int | str,
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
        scores = score(split.labels[split.validation_indices(int(seed))[1]], predicted)
    row = {"method": method, "preset": preset, "data": variant, "seed": seed, "split": where}
    costs = asdict(outcome)
    del costs["predicted"], costs["probabilities"]
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
