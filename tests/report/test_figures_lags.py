"""Learned lag kernels: the made-up data, the kernels, run folders."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from lagformer import Lagformer, LagformerConfig
from lagformer.attention import reference
from lagformer.experiment import Plan, load_split, train_model
from lagformer.report import figures_lags as figures
from lagformer.training.loop import seeded
from lagformer.training.recipe import Recipe

SMALL = LagformerConfig(
    24, 2, 3, patch_length=4, embed_dim=6, num_heads=2, head_dim=3, num_blocks=2, mlp_dim=8
)


def build(config: LagformerConfig, seed: int = 0) -> Lagformer:
    with seeded(seed):
        return Lagformer(config)


@pytest.fixture(scope="module")
def trained() -> figures.Trained:
    return figures.from_clicks(0)


# ------------------------------------------------------------------------------------- the clicks


def test_clicks_differ_in_their_distances_alone() -> None:
    x, targets = figures.clicks(200, torch.Generator().manual_seed(0))
    assert x.shape == (200, 1, 200)
    assert targets.bincount().tolist() == [100, 100]
    # A click stands a unit above noise of 0.05.
    clicked = x[:, 0] > x[:, 0].amax(1, keepdim=True) / 2
    assert clicked.sum(1).tolist() == [10] * 200
    at = clicked.nonzero()[:, 1].view(200, 10)
    assert (at % figures.PATCH == 0).all()
    gaps = at.diff()
    periodic = (gaps == figures.PERIOD * figures.PATCH).all(1)
    assert torch.equal(periodic, targets == 1)


def test_the_model_learns_the_period(trained: figures.Trained) -> None:
    assert "accuracy 1.00" in trained.source
    assert "20 samples" in trained.source
    kernels = figures.lag_kernels(trained)
    assert _contrast(kernels) > 10
    with seeded(1):
        fresh = Lagformer(trained.model.config)
    assert _contrast(figures.lag_kernels(dataclasses.replace(trained, model=fresh))) < 5


def _contrast(kernels: figures.LagKernels) -> float:
    """How many standard errors lie between lags that are multiples of the period and others."""
    multiple = kernels.lags % (figures.PERIOD * figures.PATCH) == 0
    at, off = kernels.similarity[0][:, multiple], kernels.similarity[0][:, ~multiple]
    error = np.sqrt(at.var(1) / at.shape[1] + off.var(1) / off.shape[1])
    return float(np.abs((at.mean(1) - off.mean(1)) / error).max())


# ------------------------------------------------------------------------------------ the kernels


@pytest.mark.parametrize("max_lag", [None, 0, 2, 9])
def test_kernels_agree_with_sums_over_pairs(max_lag: int | None) -> None:
    config = dataclasses.replace(SMALL, max_lag=max_lag)
    model = build(config)
    series = torch.randn(5, 2, 24, generator=torch.Generator().manual_seed(1))
    kernels = figures.lag_kernels(figures.Trained(model, series, ""))
    R = 5 if max_lag is None else max_lag
    assert kernels.lags.tolist() == [4 * m for m in range(-R, R + 1)]
    double = build(config).double()
    tokens = double.stem(series.double(), None)[0]
    phi = reference.elu_plus_one
    with torch.no_grad():
        for b, block in enumerate(double.blocks):
            x, attention = block.attention_norm(tokens), block.attention
            for h in range(2):
                rows = slice(3 * h, 3 * h + 3)
                q = phi(x @ attention.q_proj.weight[rows].T)
                k = phi(x @ attention.k_proj.weight[rows].T)
                r = phi(attention.lags[h])
                by_lag = [float((q @ r[m]).mean()) for m in range(2 * R + 1)]
                expected = np.array(by_lag) / np.mean(by_lag)
                np.testing.assert_allclose(kernels.similarity[b, h], expected, rtol=1e-12)
                pairs = [(n, i, j) for n in range(5) for i in range(6) for j in range(6)]
                lag = sum(float(q[n, i] @ r[min(max(j - i, -R), R) + R]) for n, i, j in pairs)
                key = sum(float(q[n, i] @ k[n, j]) for n, i, j in pairs)
                assert kernels.share[b, h] == pytest.approx(lag / (lag + key), rel=1e-12)
            tokens = block(tokens, None)


def test_the_band_holds_95_percent_of_an_untrained_table() -> None:
    config = dataclasses.replace(SMALL, max_lag=2000, head_dim=8)
    series = torch.randn(5, 2, 24, generator=torch.Generator().manual_seed(1))
    kernels = figures.lag_kernels(figures.Trained(build(config), series, ""), seed=3)
    low, high = np.moveaxis(kernels.untrained, 2, 0)[..., None]
    inside = ((kernels.similarity > low) & (kernels.similarity < high)).mean(2)
    # Both the band and what is counted come from 4000 draws.
    error = math.sqrt(2 * 0.95 * 0.05 / 4000)
    np.testing.assert_allclose(inside, 0.95, atol=5 * error)


def test_kernels_leave_the_model_and_the_random_state_alone() -> None:
    model = build(SMALL).train()
    weights = {name: w.clone() for name, w in model.state_dict().items()}
    state = torch.random.get_rng_state()
    figures.lag_kernels(figures.Trained(model, torch.ones(2, 2, 24), ""))
    assert model.training
    assert all(w.dtype == torch.float32 for w in model.parameters())
    assert all(torch.equal(w, weights[name]) for name, w in model.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), state)


def test_figure_has_a_panel_per_head(trained: figures.Trained, check_readable) -> None:
    kernels = figures.lag_kernels(trained)
    figure = figures.lag_figure(kernels, trained.source)
    check_readable(figure)
    assert len(figure.axes) == 2
    line = figure.axes[1].lines[0].get_xydata()
    np.testing.assert_array_equal(line[:, 0], 5 * np.arange(-39, 40))
    np.testing.assert_array_equal(line[:, 1], kernels.similarity[0, 1])


@pytest.mark.parametrize(("blocks", "heads"), [(1, 1), (3, 4), (2, 3), (2, 8)])
def test_any_number_of_panels_is_readable(blocks: int, heads: int, check_readable) -> None:
    config = dataclasses.replace(SMALL, num_blocks=blocks, num_heads=heads)
    model = figures.Trained(build(config), torch.ones(2, 2, 24), "trained on nothing")
    figure = figures.lag_figure(figures.lag_kernels(model), model.source)
    check_readable(figure)
    assert sum(panel.get_visible() for panel in figure.axes) == blocks * heads


# -------------------------------------------------------------------------------------------- runs


def a_run(folder: Path, *names: str) -> Path:
    """A run folder as `train_model` leaves it, trained on eight series."""
    split = load_split("raw")
    config = LagformerConfig.preset("olympiad", series_length=500)
    some = split.train.values[:8].astype(np.float32), split.train.mask[:8]
    for name in names:
        plan = Plan("raw", 0, "test", "lagformer", config, Recipe(epochs=1))
        home = folder / "models" / name
        train_model(plan, home, split.targets[:8], some, some, lambda record: None)
    return folder


def test_a_run_gives_its_final_model_dithered_first(tmp_path: Path, check_readable) -> None:
    names = ("raw-seed0-test-lagformer", "dithered-seed7-test-lagformer")
    trained = figures.from_run(a_run(tmp_path, *names, "dithered-seed1-validation-lagformer"))
    assert trained.source == "trained by `lagformer forda` on FordA (dithered, seed7)"
    assert trained.series.shape == (256, 1, 500)
    kernels = figures.lag_kernels(trained)
    assert kernels.similarity.shape == (3, 4, 99)
    assert kernels.lags[[0, -1]].tolist() == [-490, 490]
    check_readable(figures.lag_figure(kernels, trained.source))


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no finished model.*lagformer forda"):
        figures.from_run(tmp_path)


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


def _without_config(path: Path) -> None:
    safetensors.torch.save_file(safetensors.torch.load_file(path), path)


def _without_a_tensor(path: Path) -> None:
    tensors = safetensors.torch.load_file(path)
    del tensors["head.bias"]
    config = LagformerConfig.preset("olympiad", series_length=500)
    safetensors.torch.save_file(tensors, path, {"config": config.to_json()})


def _not_json(path: Path) -> None:
    safetensors.torch.save_file(safetensors.torch.load_file(path), path, {"config": "{"})


@pytest.mark.parametrize("harm", [_truncated, _without_config, _without_a_tensor, _not_json])
def test_a_damaged_model_is_refused_in_one_line(tmp_path: Path, harm) -> None:
    path = a_run(tmp_path, "raw-seed0-test-lagformer") / "models/raw-seed0-test-lagformer"
    harm(path / "model.safetensors")
    with pytest.raises(ValueError) as error:
        figures.from_run(tmp_path)
    assert str(path / "model.safetensors") in str(error.value)
    assert "\n" not in str(error.value)


def test_a_model_of_other_series_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "models" / "raw-seed0-test-lagformer"
    home.mkdir(parents=True)
    model = build(SMALL)
    safetensors.torch.save_file(
        model.state_dict(), home / "model.safetensors", {"config": SMALL.to_json()}
    )
    with pytest.raises(ValueError, match="not a model of raw"):
        figures.from_run(tmp_path)
