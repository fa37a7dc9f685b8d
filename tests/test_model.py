"""The network: sizes, shapes, masks, and where position comes from."""

import dataclasses
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lagformer import Lagformer, LagformerConfig
from lagformer.model import PRESETS
from lagformer.training.recipe import Recipe

SMALL = LagformerConfig(
    series_length=24,
    in_channels=2,
    num_classes=3,
    patch_length=4,
    embed_dim=8,
    num_heads=2,
    head_dim=4,
    num_blocks=2,
    mlp_dim=16,
    dropout=0.1,
)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def small(dtype: torch.dtype = torch.float64) -> Lagformer:
    return Lagformer(SMALL).to(dtype).eval()


def test_olympiad_has_the_counted_parameters() -> None:
    config = LagformerConfig.preset("olympiad", series_length=500)
    model = Lagformer(config)
    assert sum(p.numel() for p in model.parameters()) == 119_618
    assert config.num_tokens == 50
    for block in model.blocks:
        sizes = {name: p.numel() for name, p in block.attention.named_parameters()}
        assert sizes.pop("lags") == 4 * 99 * 16
        assert sum(sizes.values()) == 4 * 64 * 64


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize(("length", "channels", "classes"), [(97, 1, 2), (40, 3, 5), (6, 2, 2)])
def test_every_preset_runs_and_trains(name: str, length: int, channels: int, classes: int) -> None:
    config = LagformerConfig.preset(
        name, series_length=length, in_channels=channels, num_classes=classes
    )
    assert LagformerConfig.from_json(config.to_json()) == config
    model = Lagformer(config)
    mask = torch.ones(4, length, dtype=torch.bool)
    mask[1, length // 2 :] = False
    logits = model(torch.randn(4, channels, length), mask)
    assert logits.shape == (4, classes)
    torch.nn.functional.cross_entropy(logits, torch.arange(4) % classes).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key

    model.eval()
    x = torch.randn(3, channels, length)
    copy = Lagformer(config).eval()
    copy.load_state_dict(model.state_dict())
    assert torch.equal(copy(x), model(x))


@pytest.mark.parametrize("length", [1, 3, 4, 23, 24, 25, 100])
def test_any_length_runs_and_no_sample_is_cut_off(length: int) -> None:
    x = torch.randn(1, 2, length, dtype=torch.float64, requires_grad=True)
    small()(x).square().sum().backward()
    assert (x.grad != 0).all()


def test_a_batch_of_none() -> None:
    assert small()(torch.zeros(0, 2, 24, dtype=torch.float64)).shape == (0, 3)


@given(length=st.integers(1, 30), extra=st.integers(0, 20), batch=st.integers(1, 3))
def test_padding_changes_nothing(length: int, extra: int, batch: int) -> None:
    torch.manual_seed(length)
    model = small()
    x = torch.randn(batch, 2, length, dtype=torch.float64)
    padded = torch.cat([x, torch.full((batch, 2, extra), torch.nan, dtype=x.dtype)], dim=2)
    mask = torch.arange(length + extra).expand(batch, -1) < length
    torch.testing.assert_close(model(padded, mask), model(x), rtol=1e-12, atol=1e-12)


def test_padding_in_front_by_whole_patches_changes_nothing() -> None:
    x = torch.randn(2, 2, 24, dtype=torch.float64)
    padded = torch.cat([torch.full((2, 2, 8), torch.inf, dtype=x.dtype), x], dim=2)
    mask = (torch.arange(32) >= 8).expand(2, -1)
    model = small()
    torch.testing.assert_close(model(padded, mask), model(x), rtol=1e-12, atol=1e-12)


def test_a_token_is_masked_only_when_it_holds_no_real_sample() -> None:
    mask = torch.zeros(1, 12, dtype=torch.bool)
    mask[0, [3, 8]] = True
    _, tokens = small().encode(torch.randn(1, 2, 12), mask)
    assert tokens.tolist() == [[True, False, True]]


def test_a_series_without_a_real_sample_gives_the_same_finite_logits() -> None:
    model = small()
    mask = torch.zeros(2, 24, dtype=torch.bool)
    logits = model(torch.randn(2, 2, 24), mask)
    assert logits.isfinite().all()
    assert torch.equal(logits[0], logits[1])


def test_each_series_is_alone_in_its_batch() -> None:
    model = small()
    x = torch.randn(5, 2, 21, dtype=torch.float64)
    mask = torch.rand(5, 21) < 0.7
    alone = torch.cat([model(x[i : i + 1], mask[i : i + 1]) for i in range(5)])
    torch.testing.assert_close(model(x, mask), alone, rtol=1e-12, atol=1e-12)


def shuffled_tokens(model: Lagformer) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens of shuffled patches, and the shuffled tokens of the patches in order."""
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    patches = torch.randn(2, 2, 6, 4, dtype=torch.float64)
    tokens, _ = model.encode(patches.flatten(2))
    shuffled, _ = model.encode(patches[:, :, order].flatten(2))
    return shuffled, tokens[:, order]


def test_equal_lag_vectors_leave_no_trace_of_position() -> None:
    model = small()
    with torch.no_grad():
        for block in model.blocks:
            block.attention.lags.copy_(block.attention.lags[:, :1].expand(-1, 11, -1))
    torch.testing.assert_close(*shuffled_tokens(model), rtol=1e-12, atol=1e-12)


def test_lag_vectors_tell_positions_apart() -> None:
    shuffled, tokens = shuffled_tokens(small())
    assert (shuffled - tokens).abs().max() > 1e-3


def test_float64_and_half_input_take_the_model_dtype() -> None:
    model = small(torch.float32)
    x = torch.randn(2, 2, 24, dtype=torch.float64)
    assert model(x).dtype == torch.float32
    assert torch.equal(model(x), model(x.float()))


def test_dropout_acts_in_training_alone() -> None:
    model, x = small(), torch.randn(2, 2, 24, dtype=torch.float64)
    assert torch.equal(model(x), model(x))
    model.train()
    assert not torch.equal(model(x), model(x))


def test_dropout_lies_on_every_residual_branch() -> None:
    """When all of it is dropped, the tokens pass the blocks unchanged."""
    model = Lagformer(dataclasses.replace(SMALL, dropout=1 - 1e-12)).train()
    x = torch.randn(2, 2, 24)
    assert torch.equal(model.encode(x)[0], model.stem(x, None)[0])


@pytest.mark.parametrize(
    ("shape", "mask_shape"),
    [((2, 24), None), ((2, 3, 24), None), ((2, 2, 0), None), ((2, 2, 24), (2, 6))],
)
def test_wrong_shapes_are_one_line(
    shape: tuple[int, ...], mask_shape: tuple[int, ...] | None
) -> None:
    mask = None if mask_shape is None else torch.ones(mask_shape, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"must have shape .*got \(2") as raised:
        small()(torch.zeros(shape), mask)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"series_length": 0}, "series_length must be an integer ≥ 1, got 0"),
        ({"embed_dim": -8}, "embed_dim must be an integer ≥ 1, got -8"),
        ({"num_heads": 2.0}, "num_heads must be an integer ≥ 1, got 2.0"),
        ({"num_blocks": True}, "num_blocks must be an integer ≥ 0, got True"),
        ({"max_lag": -1}, "max_lag must be an integer ≥ 0, got -1"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
        ({"dropout": "0.1"}, r"dropout must lie in \[0, 1\)"),
        ({"feature_map": None}, "feature_map must be a name, got None"),
        ({"dropuot": 0.1}, "unknown keys in the model configuration: dropuot"),
    ],
)
def test_bad_configurations_are_one_line(change: dict[str, object], match: str) -> None:
    values = json.loads(SMALL.to_json()) | change
    with pytest.raises(ValueError, match=match):
        LagformerConfig.from_json(json.dumps(values))


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"series_length": 3}', "null"])
def test_text_that_is_no_configuration_is_one_line(text: str) -> None:
    with pytest.raises(ValueError, match="model configuration") as raised:
        LagformerConfig.from_json(text)
    assert "\n" not in str(raised.value)


def test_an_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown preset 'olimpiad'; known presets: olympiad"):
        LagformerConfig.preset("olimpiad", series_length=500)


@given(
    sizes=st.lists(st.integers(1, 99), min_size=8, max_size=8),
    dropout=st.floats(0, 1, exclude_max=True),
    max_lag=st.none() | st.integers(0, 99),
)
def test_json_round_trip(sizes: list[int], dropout: float, max_lag: int | None) -> None:
    config = LagformerConfig(*sizes, 1, dropout=dropout, max_lag=max_lag)
    assert LagformerConfig.from_json(config.to_json()) == config


def test_a_short_lag_table_makes_the_size_independent_of_length() -> None:
    def count(length: int) -> int:
        values = json.loads(SMALL.to_json()) | {"series_length": length, "max_lag": 3}
        model = Lagformer(LagformerConfig.from_json(json.dumps(values)))
        return sum(p.numel() for p in model.parameters())

    assert count(24) == count(2400)


def test_a_scalar_for_each_lag_instead_of_a_vector() -> None:
    config = LagformerConfig.preset("olympiad", series_length=500)
    scalar = dataclasses.replace(config, attention="toeplitz")
    assert LagformerConfig.from_json(scalar.to_json()) == scalar
    vectors, scalars = (sum(p.numel() for p in Lagformer(c).parameters()) for c in (config, scalar))
    assert vectors - scalars == 3 * 4 * 99 * (16 - 1)
    x = torch.randn(2, 1, 500, generator=torch.Generator().manual_seed(0))
    model = Lagformer(scalar).eval()
    model(x).sum().backward()
    assert all(block.attention.log_weights.grad.abs().sum() > 0 for block in model.blocks)
    with pytest.raises(ValueError, match="unknown attention 'absolute'; known: relative, toeplitz"):
        dataclasses.replace(config, attention="absolute")


def test_the_published_recipe_does_not_ask_for_the_phase() -> None:
    for preset, sizes in ((LagformerConfig.preset, {"series_length": 500}), (Recipe.preset, {})):
        assert preset("olympiad", phase_locked=True, **sizes) == preset("olympiad", **sizes)
        assert preset("base", phase_locked=True, **sizes) != preset("base", **sizes)


@pytest.mark.parametrize("stem", ["kernels", "convolutions"])
def test_calibrating_a_model_reaches_its_stem(stem: str) -> None:
    model = Lagformer(
        LagformerConfig.preset("base", series_length=40, phase_locked=stem == "kernels")
    )
    assert model.config.stem == stem
    before = {name: t.clone() for name, t in model.state_dict().items()}
    model.calibrate(torch.randn(9, 1, 40).cumsum(-1))
    after = model.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"stem.filters" if stem == "kernels" else "stem.step_scale"}
