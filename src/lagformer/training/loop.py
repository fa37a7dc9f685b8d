"""The training loop: short, quick, deterministic, and exactly resumable.

Every epoch draws its randomness (order, augmentation, dropout) from generators seeded by
(seed, epoch). An epoch is therefore a function of the state before it, and a checkpoint needs no
generator's state.
"""

from __future__ import annotations

import copy
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from sklearn.metrics import f1_score
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from lagformer.model import Lagformer, LagformerConfig
from lagformer.training.batches import augmented, mixed_up
from lagformer.training.checkpoint import digest, load_checkpoint, save_checkpoint
from lagformer.training.history import EpochRecord, append_history, write_history
from lagformer.training.recipe import Recipe

CALIBRATION_SERIES = 512  # at most so many tell the scale of the stem

OnEpoch = Callable[[EpochRecord], None]

_global_generators = threading.RLock()


@dataclass(frozen=True)
class Examples:
    """Labelled series as tensors: what the loop reads."""

    values: Float[Tensor, "n C L"]
    targets: Int[Tensor, " n"]
    """Class indices from 0."""
    mask: Bool[Tensor, "n L"] | None = None
    """True = a real sample; None: all are."""
    weights: Float[Tensor, " n"] | None = None
    """Importance of each series in the loss; only their proportions count. None: equal."""

    def __post_init__(self) -> None:
        if len(self.values) == 0 or len(self.targets) != len(self.values):
            raise ValueError(f"{len(self.values)} series but {len(self.targets)} targets")
        w = self.weights
        if w is not None and not (w.shape == self.targets.shape and (w >= 0).all() and w.sum() > 0):
            raise ValueError("weights must be one per series, not negative, not all zero")


def new_model(config: LagformerConfig, train: Examples, seed: int) -> Lagformer:
    """Return an untrained model on the CPU, its stem scaled to the training series."""
    with seeded(seed):
        model = Lagformer(config)
    every = slice(None, None, -(-len(train.targets) // CALIBRATION_SERIES))
    values, mask = train.values[every].float(), None if train.mask is None else train.mask[every]
    model.calibrate(values, mask)
    return model


def solve_wide(model: Lagformer, train: Examples, recipe: Recipe, seed: int) -> None:
    """Solve the model's wide readout, if it has one, on the CPU.

    It sees each series once, with the recipe's noise but neither shifted nor scaled.
    """
    if model.wide is None:
        return
    device = model.head.weight.device
    noise = replace(recipe, shift=False, amplitude=None)
    values, mask = train.values.to("cpu", model.head.weight.dtype), _cpu(train.mask)
    values = augmented(values, mask, noise, torch.Generator().manual_seed(_mixed(seed, 0, 1)))
    with seeded(seed, 0):
        model.wide.cpu().solve(values, train.targets.cpu(), mask, _cpu(train.weights))
    model.wide.to(device)


def fit(
    model: Lagformer,
    train: Examples,
    recipe: Recipe,
    *,
    seed: int,
    validation: Examples | None = None,
    folder: Path | None = None,
    on_epoch: OnEpoch | None = None,
) -> list[EpochRecord]:
    """Train `model` in place, on the device it lies on, and return the record of every epoch.

    A wide readout is solved before; its time counts into the first epoch's.

    With `validation`, macro F1 is taken after each epoch and the model ends with the weights of
    the best epoch (ties: lower loss, then the earlier), not of the last; a run that ends early by
    `recipe.patience` says so in its last record. With `folder`, each epoch
    ends in an atomic checkpoint there and a line in `history.jsonl`; calling again with the same
    arguments continues after the last whole epoch and ends with the same bits as a run that was
    never interrupted. `on_epoch` is called after each epoch's checkpoint is safe.

    The global random state is left as it was. Raises ValueError for a damaged checkpoint, one that
    belongs to another run (nothing is overwritten), a loss that is no longer finite, or patience
    without validation data.
    """
    if recipe.patience is not None and validation is None:
        raise ValueError("patience needs validation data")
    device = model.head.weight.device
    solving = time.perf_counter()
    solve_wide(model, train, recipe, seed)
    run = _Run(model, recipe, train, validation, seed, folder)
    data = _on(train, device, model.head.weight.dtype)
    held_out = None if validation is None else _on(validation, device, model.head.weight.dtype)
    while len(run.history) < recipe.epochs and not (run.history and "stopped" in run.history[-1]):
        epoch = len(run.history) + 1
        began = solving if epoch == 1 else time.perf_counter()
        generator = torch.Generator().manual_seed(_mixed(seed, epoch, 1))
        with seeded(seed, epoch, device=device):  # for dropout
            loss = _train_epoch(run, data, generator)
        if not np.isfinite(loss):
            raise ValueError(f"the loss is {loss} in epoch {epoch}; lower the learning rate")
        rate = float(run.scheduler.get_last_lr()[0])
        record = EpochRecord(epoch=epoch, train_loss=loss, learning_rate=rate)
        if held_out is not None:
            _validate(run, held_out, record)
            if recipe.patience is not None:
                _judge([*run.history, record], recipe.patience)
        record["seconds"] = time.perf_counter() - began
        run.finish_epoch(record)
        if on_epoch is not None:
            on_epoch(record)
    model.load_state_dict(run.best or run.averaged.state_dict())
    model.eval()
    return run.history


@torch.no_grad()
def predict_logits(
    model: Lagformer,
    values: Float[Tensor, "n C L"],
    mask: Bool[Tensor, "n L"] | None = None,
    *,
    batch_size: int = 256,
) -> Float[Tensor, "n classes"]:
    """Return logits on the CPU, batch by batch, without dropout; the model's mode is kept."""
    device, was_training = model.head.weight.device, model.training
    model.eval()
    logits = []
    for start in range(0, len(values), batch_size):
        part = slice(start, start + batch_size)
        x = values[part].to(device)
        logits.append(model(x, None if mask is None else mask[part].to(device)).cpu())
    model.train(was_training)
    return torch.cat(logits)


@contextmanager
def seeded(*seed: int, device: torch.device | str = "cpu") -> Iterator[None]:
    """Run torch's global generators from `seed`, then put their states back.

    Dropout and the initialisers of `torch.nn` can draw from no other generator. One thread at a
    time: they share these generators.
    """
    device = torch.device(device)
    cuda = range(torch.cuda.device_count()) if device.type == "cuda" else ()
    with _global_generators, torch.random.fork_rng(cuda):
        mps_state = torch.mps.get_rng_state() if device.type == "mps" else None
        torch.manual_seed(_mixed(*seed))
        try:
            yield
        finally:
            if mps_state is not None:
                torch.mps.set_rng_state(mps_state)


def _mixed(*seed: int) -> int:
    """Return 64 well mixed bits of several non-negative integers."""
    return int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0])


class _Run:
    """Everything that changes while training: model, optimiser, schedule, history, best weights."""

    def __init__(
        self,
        model: Lagformer,
        recipe: Recipe,
        train: Examples,
        validation: Examples | None,
        seed: int,
        folder: Path | None,
    ) -> None:
        self.model, self.recipe, self.folder = model, recipe, folder
        self.optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            fused=True,
        )
        steps = -(-len(train.targets) // recipe.batch_size) * recipe.epochs
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, max_lr=recipe.learning_rate, total_steps=steps
        )
        self.averaged = copy.deepcopy(model).eval() if recipe.averaging else model
        self.steps = 0
        self.history: list[EpochRecord] = []
        self.best: dict[str, Tensor] = {}
        self.best_score: list[float] = []
        if folder is not None:
            tensors = _tensors("train", train) | _tensors("validation", validation)
            tensors |= _prefixed("model", model.state_dict())  # the initial weights
            settings = [model.config.to_json(), json.dumps(asdict(recipe)), str(seed)]
            self.fingerprint = digest(tensors, *settings)
            folder.mkdir(parents=True, exist_ok=True)
            self._resume(folder)

    def average(self) -> None:
        """Move the averaged weights towards those of the last step."""
        if self.averaged is self.model:
            return
        kept = min(self.recipe.averaging, (1 + self.steps) / (10 + self.steps))
        self.steps += 1
        with torch.no_grad():
            torch._foreach_lerp_(
                list(self.averaged.parameters()), list(self.model.parameters()), 1 - kept
            )

    def finish_epoch(self, record: EpochRecord) -> None:
        """Add the record to the history, on disk too."""
        self.history.append(record)
        if self.folder is None:
            return
        append_history(self.folder / "history.jsonl", record)
        optimizer = self.optimizer.state_dict()
        tensors = _prefixed("model", self.model.state_dict()) | _prefixed("best", self.best)
        if self.averaged is not self.model:
            tensors |= _prefixed("averaged", self.averaged.state_dict())
        for index, moments in optimizer["state"].items():
            tensors |= _prefixed(f"optimizer.{index}", moments)
        state = {
            "fingerprint": self.fingerprint,
            "history": self.history,
            "best_score": self.best_score,
            "steps": self.steps,
            "param_groups": optimizer["param_groups"],
            "scheduler": self.scheduler.state_dict(),
        }
        save_checkpoint(self.folder / "checkpoint.safetensors", tensors, state)

    def _resume(self, folder: Path) -> None:
        """Take up the checkpoint of `folder`, if there is one, and cut the history to match."""
        path = folder / "checkpoint.safetensors"
        if path.exists():
            tensors, state = load_checkpoint(path)
            if state.get("fingerprint") != self.fingerprint:
                raise ValueError(
                    f"{path} belongs to another run (other data, seed or settings); "
                    "choose another folder or remove it"
                )
            self.model.load_state_dict(_under("model", tensors))
            if self.averaged is not self.model:
                self.averaged.load_state_dict(_under("averaged", tensors))
            moments: dict[int, dict[str, Tensor]] = {}
            for name, tensor in _under("optimizer", tensors).items():
                index, key = name.split(".")
                moments.setdefault(int(index), {})[key] = tensor
            self.optimizer.load_state_dict(
                {"state": moments, "param_groups": state["param_groups"]}
            )
            self.scheduler.load_state_dict(state["scheduler"])
            self.best = _under("best", tensors)
            self.best_score, self.steps = state["best_score"], state["steps"]
            self.history = state["history"]
        write_history(folder / "history.jsonl", self.history)


def _train_epoch(run: _Run, data: Examples, generator: torch.Generator) -> float:
    """Take one pass over the data; return the mean loss."""
    model, recipe = run.model.train(), run.recipe
    device = data.values.device
    weights = None if data.weights is None else data.weights / data.weights.mean()
    total = torch.zeros((), device=device)
    order = torch.randperm(len(data.targets), generator=generator).to(device)
    for index in torch.split(order, recipe.batch_size):
        x, mask = data.values[index], None if data.mask is None else data.mask[index]
        x = augmented(x, mask, recipe, generator)
        weight = torch.ones(len(index), device=device) if weights is None else weights[index]
        targets = one_hot(data.targets[index], model.config.num_classes).to(x.dtype)
        if recipe.mixup:
            x, mask, targets, weight = mixed_up(x, mask, targets, weight, recipe.mixup, generator)
        losses = cross_entropy(
            model(x, mask), targets, label_smoothing=recipe.label_smoothing, reduction="none"
        )
        loss = (losses * weight).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm)
        run.optimizer.step()
        run.optimizer.zero_grad()
        run.scheduler.step()
        run.average()
        total += loss.detach() * len(index)  # no .item() here: it would wait for the device
    return float(total / len(data.targets))


def _validate(run: _Run, held_out: Examples, record: EpochRecord) -> None:
    """Score the model, note it in the record, keep the weights if they are the best so far."""
    logits = predict_logits(run.averaged, held_out.values, held_out.mask).double()
    targets = held_out.targets.cpu()
    losses = cross_entropy(logits, targets, reduction="none").numpy()
    weights = None if held_out.weights is None else held_out.weights.cpu().numpy()
    predicted = logits.argmax(dim=1).numpy()
    record["validation_loss"] = float(np.average(losses, weights=weights))
    record["validation_macro_f1"] = float(
        f1_score(targets.numpy(), predicted, average="macro", sample_weight=weights)
    )
    score = [record["validation_macro_f1"], -record["validation_loss"]]
    if score > run.best_score:  # lists compare element by element
        run.best_score = score
        run.best = {name: t.detach().clone() for name, t in run.averaged.state_dict().items()}


def _judge(history: Sequence[EpochRecord], patience: int) -> None:
    """Note in the last record that it is time to stop, if it is."""
    scores = [(r["validation_macro_f1"], -r["validation_loss"]) for r in history]
    best = 1 + scores.index(max(scores))
    if len(history) - best >= patience:
        history[-1]["stopped"] = f"no validation score in {patience} epochs above epoch {best}'s"


def _on(examples: Examples, device: torch.device, dtype: torch.dtype) -> Examples:
    """Move examples to the model once; a mask that hides nothing is dropped."""
    mask = examples.mask
    return Examples(
        examples.values.to(device, dtype),
        examples.targets.to(device),
        None if mask is None or mask.all() else mask.to(device),
        None if examples.weights is None else examples.weights.to(device, dtype),
    )


def _cpu(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.cpu()


def _tensors(prefix: str, examples: Examples | None) -> dict[str, Tensor]:
    held = {} if examples is None else vars(examples)
    return {f"{prefix}.{name}": t for name, t in held.items() if t is not None}


def _prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    start = prefix + "."
    return {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}
