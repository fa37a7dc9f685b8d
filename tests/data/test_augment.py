import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lagformer.data import (
    Collection,
    amplitude,
    circular_shift,
    coloured_noise,
    dither,
    dither_pair,
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def shift_of(before, after):
    """The one k with after = np.roll(before, k, axis=-1), for (C, L) arrays of distinct values."""
    matches = [
        k for k in range(before.shape[-1]) if np.array_equal(np.roll(before, k, axis=-1), after)
    ]
    assert len(matches) == 1
    return matches[0]


@given(
    batch=st.integers(1, 6),
    channels=st.integers(1, 3),
    length=st.integers(1, 12),
    seed=st.integers(0, 99),
)
def test_circular_shift_rolls_each_series_with_its_channels(batch, channels, length, seed):
    x = torch.arange(batch * channels * length, dtype=torch.float64).reshape(
        batch, channels, length
    )
    original = x.clone()
    y = circular_shift(x, generator(seed))
    assert y.shape == x.shape
    assert y.dtype == x.dtype
    assert torch.equal(x, original)
    for before, after in zip(x.numpy(), y.numpy(), strict=True):
        shift_of(before, after)


def test_shifts_are_uniform_and_independent():
    length, batch = 5, 20_000
    x = torch.arange(length, dtype=torch.float32).expand(batch, 1, length)
    first = circular_shift(x, generator())[:, 0, 0].long()
    counts = torch.bincount(first, minlength=length).double()
    expected = batch / length
    # 99.9 % quantile of chi-squared with 4 degrees of freedom.
    assert ((counts - expected) ** 2 / expected).sum() < 18.47
    pairs = torch.bincount(first[::2] * length + first[1::2], minlength=length**2).double()
    expected = batch / 2 / length**2
    # 99.9 % quantile with 24 degrees of freedom.
    assert ((pairs - expected) ** 2 / expected).sum() < 51.18


@given(seed=st.integers(0, 200))
def test_circular_shift_moves_values_between_real_steps_only(seed):
    rng = np.random.default_rng(seed)
    mask = rng.random((5, 9)) < 0.6
    x = rng.normal(size=(5, 2, 9))
    y = circular_shift(torch.tensor(x), generator(seed), torch.tensor(mask)).numpy()
    for i in range(5):
        assert np.array_equal(y[i][:, ~mask[i]], x[i][:, ~mask[i]])
        if mask[i].any():
            shift_of(x[i][:, mask[i]], y[i][:, mask[i]])


def test_a_full_mask_changes_nothing_and_padding_stays_behind():
    x = torch.randn(8, 1, 20, generator=generator(1))
    full = torch.ones(8, 20, dtype=torch.bool)
    assert torch.equal(circular_shift(x, generator(), full), circular_shift(x, generator()))
    mask = torch.arange(20) < 7
    x[..., 7:] = 0
    y = circular_shift(x, generator(), mask.expand(8, 20))
    assert not y[..., 7:].any()
    assert not torch.equal(x, y)


def test_amplitude_is_one_factor_per_series_in_range():
    x = torch.randn(2000, 2, 3, generator=generator(1)).double()
    factor = amplitude(x, generator()) / x
    assert torch.allclose(factor, factor[:, :1, :1].expand_as(factor), rtol=1e-12)
    factor = factor[:, 0, 0]
    assert 0.8 - 1e-12 <= factor.min() < 0.802
    assert 1.198 < factor.max() < 1.2
    # Standard error of the mean of a uniform distribution: 0.4 / sqrt(12 * 2000).
    assert abs(factor.mean() - 1) < 4 * 0.4 / np.sqrt(12 * 2000)
    assert torch.equal(amplitude(x, generator(), 2.0, 2.0), 2 * x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("augment", [circular_shift, amplitude])
def test_same_seed_same_result_own_dtype_global_state_untouched(augment, dtype):
    x = torch.randn(4, 1, 30, generator=generator(3)).to(dtype)
    state = torch.get_rng_state()
    first, again, other = (augment(x, generator(s)) for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.dtype == dtype
    assert torch.equal(torch.get_rng_state(), state)


def test_dither_pair_is_the_literal_recipe():
    data = np.random.default_rng(5)
    train = Collection.from_arrays(data.normal(size=(7, 11)), list("aabbaab"))
    test = Collection.from_arrays(data.normal(size=(4, 11)), list("abab"))
    rng = np.random.default_rng(0)
    expected_train = train.values + rng.normal(0, 0.01, train.values.shape)
    expected_test = test.values + rng.normal(0, 0.01, test.values.shape)
    new_train, new_test = dither_pair(train, test)
    assert np.array_equal(new_train.values, expected_train)
    assert np.array_equal(new_test.values, expected_test)
    assert new_train.labels is train.labels
    assert new_test.names == test.names


def test_dither_scales_and_leaves_masked_steps_at_zero():
    values = np.zeros((50, 1, 200))
    noise = dither(values, np.random.default_rng(1), scale=0.5)
    # Relative standard error of a standard deviation from 10,000 draws: 1 / sqrt(20,000).
    assert noise.std() == pytest.approx(0.5, rel=4 / np.sqrt(20_000))
    assert not values.any()
    short = Collection.from_arrays([np.ones(3), np.ones(5)])
    dithered, _ = dither_pair(short, short, scale=0.1, seed=2)
    assert not dithered.values[0, 0, 3:].any()
    assert dithered.values[0, 0, :3].all()


def test_coloured_noise_keeps_mean_and_deviation_up_to_its_correlation_with_the_series():
    x = 3 + 2 * torch.randn(2000, 1, 400, generator=generator(1)).double()
    y = coloured_noise(x, generator(), 0.5)
    touched = (y != x).flatten(1).any(dim=1)
    # 2000 draws of a fifth: four standard errors are 0.036.
    assert abs(touched.double().mean() - 0.2) < 0.036
    assert torch.equal(y[~touched], x[~touched])
    centred = y[touched] - y[touched].mean(-1, keepdim=True)
    torch.testing.assert_close(
        centred.square().mean((1, 2)).mean(), torch.tensor(4.0).double(), rtol=0.05, atol=0
    )
    torch.testing.assert_close(y.mean((1, 2)), x.mean((1, 2)), rtol=0, atol=1.0)


def test_the_noise_is_as_strong_as_it_says_and_white_or_in_a_band():
    """A long sine on one frequency: what is added beside it is the noise."""
    t = torch.arange(4096, dtype=torch.float64)
    x = torch.sin(2 * torch.pi * 1900 / 4096 * t).expand(300, 1, -1)
    spectrum = torch.fft.rfft(coloured_noise(x, generator(), 0.5)).abs().square()[:, 0]
    power = spectrum.sum(dim=1) - spectrum[:, 1900]
    ratio = (power / spectrum[:, 1900]).sqrt()
    assert ratio.max() < 0.53  # at most the level, a little more by the sine's own bin
    assert ratio.max() > 0.4
    loud = ratio > 0.05
    below = spectrum[loud][:, : 2048 * 3 // 4].sum(dim=1) / power[loud]
    in_band, white = below > 0.9, (below - 0.75).abs() < 0.1
    assert (in_band | white).double().mean() > 0.95
    # Some 60 draws of a half: four standard errors are 0.26.
    assert abs(white.double().mean() - 0.5) < 0.26


def test_coloured_noise_leaves_padding_and_constants_alone():
    x = torch.zeros(50, 2, 12)
    x[:, 0, :7] = torch.randn(50, 7, generator=generator(1))
    mask = (torch.arange(12) < 7).expand(50, -1)
    y = coloured_noise(x, generator(), 0.5, mask)
    assert not y[:, :, 7:].any()
    assert not y[:, 1].any()
    assert (y[:, 0] != x[:, 0]).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_coloured_noise_repeats_itself_and_touches_nothing(dtype):
    x = torch.randn(6, 2, 15, dtype=dtype, generator=generator(3))
    original, state = x.clone(), torch.get_rng_state()
    y = coloured_noise(x, generator(), 0.3)
    assert y.dtype == dtype
    assert torch.equal(y, coloured_noise(x, generator(), 0.3))
    assert torch.equal(x, original)
    assert torch.equal(torch.get_rng_state(), state)
