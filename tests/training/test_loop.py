"""The loop learns, follows the recipe, repeats itself exactly and resumes exactly."""

import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score

from lagformer import Lagformer
from lagformer.training import batches, loop
from lagformer.training.history import EpochRecord, read_history
from lagformer.training.loop import Examples, fit, new_model, predict_logits, seeded
from lagformer.training.recipe import Recipe

from .conftest import CONFIG, examples

RECIPE = Recipe(epochs=6, batch_size=8)
DATA = examples(20)


def fresh(seed: int = 0) -> Lagformer:
    with seeded(seed):
        return Lagformer(CONFIG)


def weights(model: Lagformer) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.state_dict().values()]


def same(a: Lagformer, b: Lagformer) -> bool:
    return all(torch.equal(x, y) for x, y in zip(weights(a), weights(b), strict=True))


def fitted(data: Examples = DATA, recipe: Recipe = RECIPE, seed: int = 0, **kwargs) -> Lagformer:  # type: ignore[no-untyped-def]
    model = fresh()
    fit(model, data, recipe, seed=seed, **kwargs)
    return model


# ------------------------------------------------------------------------------------- learning


def test_it_learns_what_can_be_learnt() -> None:
    model = fitted(examples(200), Recipe(epochs=30, batch_size=16, learning_rate=1e-2))
    test = examples(200, seed=1)
    accuracy = (predict_logits(model, test.values).argmax(1) == test.targets).float().mean()
    assert accuracy > 0.95


@pytest.mark.parametrize("n", [1, 3, 9])
def test_a_last_batch_of_one_and_less_than_a_batch_train(n: int) -> None:
    model = fitted(examples(n))
    assert not same(model, fresh())
    assert all(w.isfinite().all() for w in weights(model))


def test_the_model_ends_in_eval_mode_and_the_input_is_untouched() -> None:
    data = examples(20)
    model = fitted(data)
    assert not model.training
    assert torch.equal(data.values, DATA.values)


def test_the_first_step_is_the_recipe_written_out() -> None:
    """One epoch of one batch, against AdamW and the loss worked out by hand."""
    recipe = Recipe(epochs=2, batch_size=20, shift=False, amplitude=None, clip_norm=0.5)
    config = dataclasses.replace(CONFIG, dropout=0.0)
    with seeded(0):
        model = Lagformer(config).double()
        twin = Lagformer(config).double()
    twin.load_state_dict(model.state_dict())
    history = fit(model, DATA, dataclasses.replace(recipe, epochs=2), seed=0)

    first, second = {}, {}
    beta2, eps, peak = 0.999, 1e-8, 1e-3
    # OneCycleLR over 2 steps: cosine from the peak, which lies at step 0.3·2 - 1, to the end.
    fraction = (0 - (0.3 * 2 - 1)) / (1 - (0.3 * 2 - 1))
    low = peak / 25 / 1e4
    rates = [low + (peak - low) * (1 + math.cos(math.pi * fraction)) / 2, low]
    betas = [0.95 + (0.85 - 0.95) * (1 + math.cos(math.pi * fraction)) / 2, 0.95]
    for step, (rate, beta1) in enumerate(zip(rates, betas, strict=True), start=1):
        twin.zero_grad()
        log_p = twin(DATA.values).log_softmax(dim=1)
        right = log_p[torch.arange(20), DATA.targets]
        loss = -(0.95 * right + 0.05 * log_p.mean(dim=1)).mean()
        loss.backward()
        assert history[step - 1]["train_loss"] == pytest.approx(loss.item(), rel=1e-6)
        norm = torch.cat([p.grad.flatten() for p in twin.parameters()]).norm()
        scale = min(1.0, 0.5 / (norm.item() + 1e-6))
        with torch.no_grad():
            for name, p in twin.named_parameters():
                g = p.grad * scale
                m = first[name] = beta1 * first.get(name, 0) + (1 - beta1) * g
                v = second[name] = beta2 * second.get(name, 0) + (1 - beta2) * g**2
                p *= 1 - rate * 0.05
                m_hat, v_hat = m / (1 - beta1**step), v / (1 - beta2**step)
                p -= rate * m_hat / (v_hat.sqrt() + eps)
    for a, b in zip(weights(model), weights(twin), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_the_learning_rate_peaks_at_the_given_rate_and_ends_near_zero() -> None:
    recipe = Recipe(epochs=40, batch_size=20, learning_rate=0.02)
    rates = [r["learning_rate"] for r in fit(fresh(), DATA, recipe, seed=0)]
    assert max(rates) == pytest.approx(0.02, rel=0.02)
    assert rates.index(max(rates)) == pytest.approx(0.3 * 40, abs=2)
    assert rates[-1] < 1e-4


@pytest.mark.parametrize(
    "change",
    [
        {"shift": False},
        {"amplitude": None},
        {"label_smoothing": 0},
        {"coloured_noise": 0.3},
        {"mixup": 0.4},
        {"averaging": 0.9},
    ],
)
def test_each_part_of_the_augmentation_and_smoothing_acts(change: dict[str, object]) -> None:
    assert not same(fitted(), fitted(recipe=dataclasses.replace(RECIPE, **change)))


def test_the_averaged_weights_are_the_moving_average_of_the_steps() -> None:
    plain, path = Recipe(epochs=5, batch_size=20, shift=False), []
    average = weights(fresh())
    model = fresh()
    fit(model, DATA, plain, seed=0, on_epoch=lambda _: path.append(weights(model)))
    for step, current in enumerate(path):
        kept = min(0.5, (1 + step) / (10 + step))
        average = [a + (c - a) * (1 - kept) for a, c in zip(average, current, strict=True)]
    assert len(path) == 5
    averaged = fitted(recipe=dataclasses.replace(plain, averaging=0.5))
    for a, b in zip(weights(averaged), average, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_a_new_model_is_scaled_to_its_training_series() -> None:
    config = dataclasses.replace(CONFIG, stem="kernels", num_dilations=1)
    model = new_model(config, DATA, seed=0)
    double = new_model(config, dataclasses.replace(DATA, values=2 * DATA.values), seed=0)
    torch.testing.assert_close(2 * double.stem.filters, model.stem.filters)
    assert same(new_model(CONFIG, DATA, seed=0), fresh(0))


def test_weights_act_as_repetition() -> None:
    """Weights in {1, 3}, whole batches: the gradient equals that of the repeated examples."""
    recipe = Recipe(epochs=1, batch_size=100, shift=False, amplitude=None)
    config = dataclasses.replace(CONFIG, dropout=0.0)
    counts = 1 + 2 * (torch.arange(20) < 5)
    repeated = Examples(
        DATA.values.repeat_interleave(counts, 0), DATA.targets.repeat_interleave(counts)
    )
    losses = []
    for data in (dataclasses.replace(DATA, weights=7.0 * counts), repeated):
        with seeded(0):
            model = Lagformer(config).double()
        losses.append(fit(model, data, recipe, seed=0)[0]["train_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_a_masked_sample_has_no_influence() -> None:
    mask = torch.ones(20, 16, dtype=torch.bool)
    mask[::3, 9:] = False
    data = dataclasses.replace(DATA, mask=mask)
    other = dataclasses.replace(data, values=DATA.values.masked_fill(~mask[:, None], 1e3))
    assert same(fitted(data), fitted(other))


def test_a_full_mask_is_no_mask() -> None:
    mask = torch.ones(20, 16, dtype=torch.bool)
    assert same(fitted(), fitted(dataclasses.replace(DATA, mask=mask)))


# --------------------------------------------------------------------------------- randomness


def test_the_same_seed_gives_the_same_bits_and_another_seed_others() -> None:
    assert same(fitted(seed=0), fitted(seed=0))
    assert not same(fitted(seed=0), fitted(seed=1))


def test_the_global_state_neither_matters_nor_changes() -> None:
    torch.manual_seed(1)
    first = fitted()
    torch.manual_seed(2)
    np.random.seed(3)  # noqa: NPY002
    before = torch.get_rng_state(), np.random.get_state()[1]  # noqa: NPY002
    second = fitted(validation=examples(6))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002
    assert same(first, fitted())
    assert second is not None


def test_the_state_is_put_back_when_an_epoch_fails() -> None:
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), seeded(0):
        torch.rand(1 // 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_epochs_differ_from_each_other_and_from_the_initial_weights() -> None:
    draws = []
    for seed in [(0,), (0, 1), (0, 2), (1, 1), (1,)]:
        with seeded(*seed):
            draws.append(torch.rand(4))
    assert len({tuple(d.tolist()) for d in draws}) == len(draws)


def test_every_epoch_has_its_own_order_and_augmentation(monkeypatch: pytest.MonkeyPatch) -> None:
    first_batches, draws = [], []

    def spy(x: torch.Tensor, generator: torch.Generator, mask: torch.Tensor | None) -> torch.Tensor:
        first_batches.append(x)
        draws.append(torch.rand((), generator=generator).item())
        return x

    monkeypatch.setattr(batches, "circular_shift", spy)
    fitted(recipe=dataclasses.replace(RECIPE, batch_size=20))
    assert len(set(draws)) == len(draws) == 6
    assert len({tuple(x[:, 0, 0].tolist()) for x in first_batches}) == 6
    assert len({tuple(sorted(x[:, 0, 0].tolist())) for x in first_batches}) == 1


# --------------------------------------------------------------------------------- validation


def test_the_best_epoch_is_restored() -> None:
    validation = examples(30, seed=5)
    recipe = Recipe(epochs=12, batch_size=8, learning_rate=0.05)
    seen: dict[int, list[torch.Tensor]] = {}
    model = fresh()

    def keep(record: EpochRecord) -> None:
        seen[record["epoch"]] = weights(model)

    history = fit(model, DATA, recipe, seed=0, validation=validation, on_epoch=keep)
    best = max(history, key=lambda r: (r["validation_macro_f1"], -r["validation_loss"]))
    assert best["epoch"] != 12, "the test needs a run whose last epoch is not its best"
    assert all(torch.equal(a, b) for a, b in zip(weights(model), seen[best["epoch"]], strict=True))
    logits = predict_logits(model, validation.values)
    expected = torch.nn.functional.cross_entropy(logits.double(), validation.targets).item()
    assert best["validation_loss"] == pytest.approx(expected, rel=1e-12)
    assert best["validation_macro_f1"] == f1_score(
        validation.targets, logits.argmax(1), average="macro"
    )


def test_watching_validation_does_not_change_the_training() -> None:
    losses = [r["train_loss"] for r in fit(fresh(), DATA, RECIPE, seed=0)]
    watched = fit(fresh(), DATA, RECIPE, seed=0, validation=examples(7, seed=2))
    assert [r["train_loss"] for r in watched] == losses


def test_a_class_absent_from_validation() -> None:
    ones = DATA.targets == 1
    validation = Examples(DATA.values[ones], DATA.targets[ones])
    history = fit(fresh(), DATA, RECIPE, seed=0, validation=validation)
    assert all(0 <= r["validation_macro_f1"] <= 1 for r in history)


def test_prediction_is_batched_and_keeps_the_mode(model: Lagformer) -> None:
    model.train()
    whole = predict_logits(model, DATA.values)
    assert model.training
    assert not whole.requires_grad
    parts = predict_logits(model, DATA.values, batch_size=3)
    torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-6)


# -------------------------------------------------------------------------------------- resuming


class Died(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("with_validation", [False, True])
@pytest.mark.parametrize("point", ["append_history", "save_checkpoint", "on_epoch"])
@pytest.mark.parametrize("before", [True, False])
def test_a_run_that_dies_anywhere_resumes_to_the_same_bits(
    with_validation: bool,
    point: str,
    before: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    validation = examples(9, seed=4) if with_validation else None
    whole = fresh()
    expected = fit(whole, DATA, RECIPE, seed=0, validation=validation)
    for death in (1, 3):
        calls = 0

        def dying(original, *, death: int = death):  # type: ignore[no-untyped-def]
            def call(*args: object) -> None:
                nonlocal calls
                calls += 1
                if before and calls == death:
                    raise Died
                original(*args)
                if calls == death:
                    raise Died

            return call

        on_epoch = dying(lambda record: None) if point == "on_epoch" else None
        with monkeypatch.context() as patch:
            if on_epoch is None:
                patch.setattr(loop, point, dying(getattr(loop, point)))
            with pytest.raises(Died):
                fit(
                    fresh(),
                    DATA,
                    RECIPE,
                    seed=0,
                    validation=validation,
                    folder=tmp_path,
                    on_epoch=on_epoch,
                )
    resumed = fresh()
    seen: list[int] = []
    history = fit(
        resumed,
        DATA,
        RECIPE,
        seed=0,
        validation=validation,
        folder=tmp_path,
        on_epoch=lambda record: seen.append(record["epoch"]),
    )
    assert same(whole, resumed)
    assert 0 < len(seen) < 6
    for records in (history, read_history(tmp_path / "history.jsonl")):
        strip = [{k: v for k, v in r.items() if k != "seconds"} for r in records]
        assert strip == [{k: v for k, v in r.items() if k != "seconds"} for r in expected]


def test_the_best_epoch_survives_an_interruption(tmp_path: Path) -> None:
    recipe = Recipe(epochs=12, batch_size=8, learning_rate=0.05)
    validation = examples(30, seed=5)

    def die(record: EpochRecord) -> None:
        if record["epoch"] == 11:
            raise Died

    with pytest.raises(Died):
        fitted(recipe=recipe, validation=validation, folder=tmp_path, on_epoch=die)
    resumed = fitted(recipe=recipe, validation=validation, folder=tmp_path)
    best = max(
        read_history(tmp_path / "history.jsonl"),
        key=lambda r: (r["validation_macro_f1"], -r["validation_loss"]),
    )
    assert best["epoch"] < 12, "the test needs a best epoch before the interruption"
    assert same(resumed, fitted(recipe=recipe, validation=validation))


def test_a_finished_run_is_taken_up_without_training(tmp_path: Path) -> None:
    first = fitted(folder=tmp_path)
    seen: list[EpochRecord] = []
    assert same(first, fitted(folder=tmp_path, on_epoch=seen.append))
    assert seen == []


KILLER = """
import os, random, signal, sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
from conftest import CONFIG, examples
from lagformer import Lagformer
from lagformer.training.loop import fit, seeded
from lagformer.training.recipe import Recipe
from lagformer.training.checkpoint import load_checkpoint

folder, chance, reached = Path(sys.argv[2]), random.Random(0), []

def train():
    with seeded(0):
        model = Lagformer(CONFIG)
    fit(model, examples(40), Recipe(epochs=40, batch_size=8), seed=0,
        validation=examples(9, seed=4), folder=folder)

def whole_epochs():
    path = folder / "checkpoint.safetensors"
    return len(load_checkpoint(path)[1]["history"]) if path.exists() else 0

for kill in range(40):
    start = whole_epochs()
    child = os.fork()
    if child == 0:
        train()
        os._exit(0)
    while whole_epochs() == start:  # at least one epoch a life, then any moment
        time.sleep(0.001)
        if os.waitpid(child, os.WNOHANG) != (0, 0):
            break
    else:
        time.sleep(chance.random() * 0.03)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        reached.append(whole_epochs())
        continue
    break
else:
    train()
print(*reached)
"""


@pytest.mark.slow
def test_a_run_killed_again_and_again_ends_with_the_same_bits(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", KILLER, str(Path(__file__).parent), str(tmp_path)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    reached = [int(word) for word in result.stdout.split()]
    assert len(reached) >= 5, "the run was hardly killed"
    assert reached == sorted(reached)

    recipe = Recipe(epochs=40, batch_size=8)
    validation = examples(9, seed=4)
    whole = fresh()
    expected = fit(whole, examples(40), recipe, seed=0, validation=validation)
    killed = fresh()
    fit(killed, examples(40), recipe, seed=0, validation=validation, folder=tmp_path)
    assert same(whole, killed)
    history = read_history(tmp_path / "history.jsonl")
    assert [r["epoch"] for r in history] == list(range(1, 41))
    assert [r["train_loss"] for r in history] == [r["train_loss"] for r in expected]


@pytest.mark.parametrize("change", ["data", "recipe", "seed", "config", "weights", "validation"])
def test_a_checkpoint_of_another_run_is_refused_and_kept(change: str, tmp_path: Path) -> None:
    fitted(folder=tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    data, recipe, seed, validation = DATA, RECIPE, 0, None
    with seeded(1 if change == "weights" else 0):
        model = Lagformer(dataclasses.replace(CONFIG, dropout=0.2 if change == "config" else 0.1))
    if change == "data":
        data = Examples(DATA.values + 1e-6, DATA.targets)
    elif change == "recipe":
        recipe = dataclasses.replace(RECIPE, weight_decay=0.04)
    elif change == "seed":
        seed = 1
    elif change == "validation":
        validation = examples(6)
    with pytest.raises(ValueError, match="belongs to another run") as raised:
        fit(model, data, recipe, seed=seed, validation=validation, folder=tmp_path)
    assert "\n" not in str(raised.value)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_damaged_checkpoint_is_refused_and_kept(tmp_path: Path) -> None:
    fitted(folder=tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    before = path.read_bytes()
    with pytest.raises(ValueError, match="damaged"):
        fitted(folder=tmp_path)
    assert path.read_bytes() == before


# --------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"epochs": 0}, "epochs must be an integer ≥ 1, got 0"),
        ({"batch_size": -1}, "batch_size must be an integer ≥ 1, got -1"),
        ({"learning_rate": 0.0}, "learning_rate must be positive, got 0.0"),
        ({"learning_rate": math.nan}, "learning_rate must be positive, got nan"),
        ({"clip_norm": -1.0}, "clip_norm must be positive"),
        ({"weight_decay": -0.1}, "weight_decay must not be negative"),
        ({"label_smoothing": 1.0}, r"label_smoothing must lie in \[0, 1\)"),
        ({"amplitude": (1.2, 0.8)}, "amplitude must be 0 < low ≤ high"),
    ],
)
def test_a_bad_recipe_is_one_line(change: dict[str, float], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Recipe(**change)


@pytest.mark.parametrize(
    "weights", [torch.ones(3), -torch.ones(20), torch.zeros(20), torch.full((20,), math.nan)]
)
def test_bad_weights_are_one_line(weights: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="weights must be one per series"):
        Examples(DATA.values, DATA.targets, weights=weights)


def test_no_series_or_missing_targets_are_one_line() -> None:
    with pytest.raises(ValueError, match="0 series but 0 targets"):
        Examples(DATA.values[:0], DATA.targets[:0])
    with pytest.raises(ValueError, match="20 series but 19 targets"):
        Examples(DATA.values, DATA.targets[1:])


def test_a_loss_that_explodes_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the loss is nan in epoch 1; lower the learning rate"):
        fitted(Examples(torch.full((4, 1, 16), math.nan), torch.arange(4) % 2), folder=tmp_path)
    assert not (tmp_path / "checkpoint.safetensors").exists()


def test_the_recipe_is_json() -> None:
    recipe = dataclasses.asdict(Recipe())
    assert json.loads(json.dumps(recipe)) == recipe | {"amplitude": [0.8, 1.2]}
