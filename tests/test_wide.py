"""The wide readout: its features by loops, its ridge regression by scikit-learn."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.linear_model import Ridge
from torch import Tensor

import lagformer.wide as wide_module
from lagformer import Lagformer, LagformerConfig
from lagformer.training.loop import Examples, fit, new_model
from lagformer.training.recipe import Recipe
from lagformer.wide import WideReadout, ridge

SIZES = {
    "patch_length": 4,
    "embed_dim": 8,
    "num_heads": 2,
    "head_dim": 4,
    "num_blocks": 1,
    "mlp_dim": 8,
    "wide_groups": 2,
}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def readout(length: int = 40, channels: int = 1, *, circular: bool = True) -> WideReadout:
    made = WideReadout(channels, length, 3, groups=2, circular=circular).double()
    torch.nn.init.normal_(made.bias)
    made.filters *= 10  # some near ties, but not everywhere
    return made


def toy(n: int = 30, length: int = 40, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Series of three frequencies and any phase."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.arange(n) % 3
    phase = 6.3 * torch.rand(n, 1, generator=generator)
    x = torch.sin((0.3 + 0.5 * targets[:, None]) * torch.arange(length) + phase)
    return (x + 0.1 * torch.randn(x.shape, generator=generator))[:, None].double(), targets


def by_loops(
    made: WideReadout, series: NDArray[np.float64], *, circular: bool
) -> NDArray[np.float64]:
    """Describe one series (C, L) without any gap, place by place."""
    filters, biases = made.filters.numpy(), made.bias.numpy()
    length = series.shape[1]
    out = []
    for row in range(len(filters)):
        dilation, differences = 2 ** (row // 2), row % 2
        kinds = filters.shape[-1]
        won, lost, above, places = np.zeros(kinds), np.zeros(kinds), np.zeros(kinds), 0
        for place in range(length):
            first = place - 4 * dilation if circular else place
            said = np.zeros(kinds)
            for channel in range(len(series)):
                for tap in range(9):
                    t = first + tap * dilation
                    if not circular and t + differences >= length:
                        break
                    value = series[channel, t % length]
                    if differences:
                        value = series[channel, (t + 1) % length] - value
                    said += value * filters[row, channel, tap]
            if not circular and first + 8 * dilation + differences >= length:
                continue
            places += 1
            above += (1 + np.clip(said - biases[row], -1, 1)) / 2
            for group in range(kinds // 8):
                rivals = [k for k in range(kinds) if k % (kinds // 8) == group]
                for k in rivals:
                    won[k] += max(said[rivals]) * max(0, 1 - (max(said[rivals]) - said[k]))
                    lost[k] += max(0, 1 - (said[k] - min(said[rivals])))
        places = max(places, 1)
        won, lost = np.maximum(won, 0) / places / 32, lost / places
        out += [np.sqrt(won + 1e-5), np.sqrt(lost + 1e-5), above / places]
    return np.concatenate(out)


@pytest.mark.parametrize("circular", [True, False])
@pytest.mark.parametrize(("channels", "length"), [(1, 40), (2, 33), (1, 5), (3, 17)])
def test_features_equal_the_loops(circular: bool, channels: int, length: int) -> None:
    made = readout(40, channels, circular=circular)
    x = torch.randn(5, channels, length, dtype=torch.float64)
    expected = np.stack([by_loops(made, series, circular=circular) for series in x.numpy()])
    np.testing.assert_allclose(made.features(x, None).numpy(), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("circular", [True, False])
@given(length=st.integers(1, 40), extra=st.integers(0, 20))
def test_padding_changes_nothing(circular: bool, length: int, extra: int) -> None:
    made = readout(circular=circular)
    x = torch.randn(2, 1, length, dtype=torch.float64)
    padded = torch.cat([x, torch.full((2, 1, extra), 7.0)], dim=2)
    mask = (torch.arange(length + extra) < length).expand(2, -1)
    torch.testing.assert_close(
        made.features(padded, mask), made.features(x, None), rtol=1e-12, atol=1e-12
    )


def test_a_batch_of_any_size_is_its_rows() -> None:
    made, x = readout(), toy(11)[0]
    lengths = torch.arange(30, 41)
    mask = torch.arange(40) < lengths[:, None]
    together = made.features(x, mask)
    for i in range(11):
        torch.testing.assert_close(
            together[i], made.features(x[i : i + 1], mask[i : i + 1])[0], rtol=0, atol=1e-13
        )


@pytest.mark.parametrize("circular", [True, False])
def test_no_series_and_series_without_a_sample(circular: bool) -> None:
    made, nothing = readout(circular=circular), torch.zeros(2, 40, dtype=torch.bool)
    assert made(torch.zeros(0, 1, 40, dtype=torch.float64), None).shape == (0, 3)
    assert made(torch.zeros(0, 1, 40, dtype=torch.float64), nothing[:0]).shape == (0, 3)
    assert made(torch.ones(2, 1, 40, dtype=torch.float64), nothing).isfinite().all()


def test_circular_features_do_not_know_when() -> None:
    made, x = readout(), toy()[0]
    torch.testing.assert_close(
        made.features(x.roll(13, -1), None), made.features(x, None), rtol=1e-12, atol=1e-12
    )


def test_a_level_is_not_seen() -> None:
    made, x = readout(), toy()[0]
    # The taps add up to zero in single precision: of 10 times a level of 5 some 2e-6 is left, and
    # the root of a small share makes 158 times as much of it.
    torch.testing.assert_close(
        made.features(x + 5, None), made.features(x, None), rtol=0, atol=3e-4
    )


def test_rounding_does_not_decide_a_tie() -> None:
    # Of a flat series every response is 0 but for rounding.
    made = readout().float()
    flat = torch.full((2, 1, 40), 0.1)
    flat[1] += 1e-7
    features = made.features(flat, None)
    torch.testing.assert_close(features[0], features[1], rtol=0, atol=1e-3)


@pytest.mark.parametrize("circular", [True, False])
def test_solving_scales_the_responses(circular: bool) -> None:
    made, (x, targets) = readout(circular=circular), toy(16)
    made.solve(x, targets)
    for i in range(len(made.bias)):
        response, share = made.responses(x, None, i)
        real = response[:, share[0, 0] > 0]
        assert float(real.square().mean().sqrt()) == pytest.approx(32, rel=1e-6)
        extent = real.flatten(0, 1)
        assert (made.bias[i] >= extent.amin(0) - 1e-9).all()
        assert (made.bias[i] <= extent.amax(0) + 1e-9).all()


@pytest.mark.parametrize("shape", [(12, 30), (30, 12)])
@pytest.mark.parametrize("weighted", [True, False])
def test_ridge_is_scikit_learns(
    shape: tuple[int, int], weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wide_module, "PENALTIES", [3.0])
    rng = np.random.default_rng(0)
    z, aims = rng.normal(size=shape) + 1, rng.normal(size=(shape[0], 2))
    weight = rng.uniform(0.5, 2, shape[0]) if weighted else np.ones(shape[0])
    coefficients, offset, unseen = ridge(*map(torch.from_numpy, (z, aims, weight)))
    theirs = Ridge(3.0).fit(z, aims, sample_weight=weight)
    np.testing.assert_allclose(coefficients.numpy(), theirs.coef_.T, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(offset.numpy(), theirs.intercept_, rtol=1e-9, atol=1e-12)
    for i in range(len(z)):
        rest = np.arange(len(z)) != i
        left_out = Ridge(3.0).fit(z[rest], aims[rest], sample_weight=weight[rest])
        np.testing.assert_allclose(unseen[i], left_out.predict(z[i : i + 1])[0], rtol=1e-8)


def test_the_penalty_has_the_least_error_left_out() -> None:
    rng = np.random.default_rng(1)
    z = rng.normal(size=(40, 8))
    aims = z[:, :1] + rng.normal(size=(40, 1))
    coefficients, _, _ = ridge(*map(torch.from_numpy, (z, aims, np.ones(40))))
    errors = []
    for penalty in wide_module.PENALTIES:
        found = [
            Ridge(penalty).fit(np.delete(z, i, 0), np.delete(aims, i, 0)).predict(z[i : i + 1])
            for i in range(40)
        ]
        errors.append(np.square(np.array(found).reshape(40, 1) - aims).sum())
    best = Ridge(wide_module.PENALTIES[int(np.argmin(errors))]).fit(z, aims)
    np.testing.assert_allclose(coefficients.numpy(), best.coef_.reshape(-1, 1), rtol=1e-8)


@pytest.mark.parametrize("circular", [True, False])
def test_it_learns_at_once(circular: bool) -> None:
    made = readout(circular=circular)
    x, targets = toy(45)
    assert not made(x, None).any()
    made.solve(x, targets)
    unseen, labels = toy(60, seed=1)
    logits = made(unseen, None)
    assert (logits.argmax(1) == labels).double().mean() > 0.95
    # Right answers are told with confidence, but not with more than n series can show.
    assert 0 < torch.nn.functional.cross_entropy(logits, labels) < 0.3
    assert logits.softmax(1).max() < 1


def test_series_without_weight_are_left_out() -> None:
    x, targets = toy(40)
    weights = torch.ones(40, dtype=torch.float64)
    weights[30:] = 0
    wrong = torch.where(weights > 0, targets, (targets + 1) % 3)
    one, other = readout(), readout()
    other.load_state_dict(one.state_dict())
    for made, series in ((one, (x, wrong, None, weights)), (other, (x[:30], targets[:30]))):
        torch.manual_seed(1)
        made.solve(*series)
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_many_series_are_thinned_out(monkeypatch: pytest.MonkeyPatch) -> None:
    x, targets = toy(40)
    one, other = readout(), readout()
    other.load_state_dict(one.state_dict())
    monkeypatch.setattr(wide_module, "MOST_SERIES", 20)
    torch.manual_seed(1)
    one.solve(x, targets)
    torch.manual_seed(1)
    other.solve(x[::2], targets[::2])
    assert torch.equal(one.weight, other.weight)


def test_constant_series_are_no_trouble() -> None:
    made = readout()
    made.solve(torch.zeros(6, 1, 40, dtype=torch.float64), torch.arange(6) % 3)
    assert made(torch.randn(4, 1, 40, dtype=torch.float64), None).isfinite().all()


def test_gradients_reach_the_series() -> None:
    made = readout()
    made.solve(*toy())
    x = toy()[0].requires_grad_()
    made(x, None).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert x.grad.any()


def config(**changes: object) -> LagformerConfig:
    return LagformerConfig(40, 1, 3, **SIZES | changes)


def test_the_model_blends_two_answers() -> None:
    model = Lagformer(config(wide_share=0.3)).double()
    x, targets = toy()
    assert model.wide is not None
    model.wide.solve(x, targets)
    model.train()
    transformer = model(x)
    model.eval()
    wide = model.wide(x, None)
    expected = 0.7 * transformer.log_softmax(1) + 0.3 * wide.log_softmax(1)
    torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-13)


def test_its_weights_are_counted_and_not_trained() -> None:
    model, plain = Lagformer(config()), Lagformer(config(wide_groups=0))
    trained = sum(p.numel() for p in model.parameters())
    assert trained == plain.num_parameters
    # dilations 1, 2, 4 × series and differences × 16 filters × 3 numbers
    assert model.num_parameters == trained + 3 * (3 * 2 * 16 * 3 + 1)


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_training_solves_it_first(noise: float) -> None:
    x, targets = toy()
    recipe = Recipe(epochs=2, batch_size=8, shift=False, coloured_noise=noise)
    before = torch.random.get_rng_state()
    models = []
    for _ in range(2):
        examples = Examples(x.float(), targets)
        model = new_model(config(), examples, seed=3)
        fit(model, examples, recipe, seed=3)
        models.append(model)
    assert torch.equal(torch.random.get_rng_state(), before)
    first, second = (model.state_dict() for model in models)
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert models[0].wide is not None
    assert models[0].wide.weight.any()


def test_noise_reaches_it() -> None:
    x, targets = toy()
    weights = []
    for noise in (0.0, 0.5):
        model = new_model(config(), Examples(x.float(), targets), seed=3)
        recipe = Recipe(epochs=1, shift=False, coloured_noise=noise)
        fit(model, Examples(x.float(), targets), recipe, seed=3)
        assert model.wide is not None
        weights.append(model.wide.weight)
    assert not torch.equal(*weights)


@pytest.mark.parametrize("value", [-0.1, 1.1, "half", None])
def test_a_share_out_of_range_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="wide_share must lie in"):
        config(wide_share=value)


def test_circular_must_be_a_truth_value() -> None:
    with pytest.raises(ValueError, match="wide_circular must be true or false"):
        config(wide_circular=1)
