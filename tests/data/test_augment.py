import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lagformer.data import Collection, amplitude, circular_shift, dither, dither_pair


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
