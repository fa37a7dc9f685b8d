"""Stems: no token can tell where it sits; padding and batches change nothing."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lagformer import Lagformer, LagformerConfig
from lagformer.stems import BANKS, KERNEL, ConvStem, KernelStem, PatchStem, periodic


def kernel_stem(patch_length: int = 6, stride: int = 2, dilations: int = 3) -> KernelStem:
    torch.manual_seed(0)
    return KernelStem(
        2, patch_length, 5, num_kernels=16, num_dilations=dilations, stride=stride
    ).double()


def conv_stem(patch_length: int = 6, stride: int = 2, layers: int = 2) -> ConvStem:
    torch.manual_seed(0)
    stem = ConvStem(2, patch_length, 5, num_kernels=8, num_layers=layers, stride=stride).double()
    stem.step_scale.copy_(torch.tensor([[0.5], [3.0]]))
    for norm in (stem.norm, *stem.layer_norms):  # as if trained
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
    return stem


STEMS = pytest.mark.parametrize("stem_of", [kernel_stem, conv_stem])


def kernels_by_hand(stem: KernelStem, x: torch.Tensor) -> torch.Tensor:
    """Tokens of one series (C, L), written place by place."""
    C, L = x.shape
    P, tokens = stem.patch_length, []
    for first in range(0, -(-L // P) * P, P):
        described = []
        for filters, dilation, sharpness in zip(
            stem.filters, stem.dilations, stem.log_sharpness.exp(), strict=True
        ):
            won, share = [], []
            for place in range(first, first + P, stem.stride):
                window = [(place + dilation * (m - KERNEL // 2)) % L for m in range(KERNEL)]
                response = torch.einsum("fcm,cm->f", filters, x[:, window])
                groups = [(g, (g * sharpness.squeeze()).exp()) for g in response.split(8)]
                share.append(torch.cat([e / e.sum() for _, e in groups]))
                won.append(torch.cat([g * e / e.sum() for g, e in groups]))
            described += [torch.stack(won).mean(0), torch.stack(share).mean(0)]
        patch = [(first - P // 2 + m) % L for m in range(2 * P)]
        tokens.append(stem.proj(torch.cat(described)) + stem.patch_proj(x[:, patch].flatten()))
    assert C == 2
    return torch.stack(tokens)


def convolutions_by_hand(stem: ConvStem, x: torch.Tensor) -> torch.Tensor:
    """Tokens of one series (C, L), written place by place."""
    L, P, S = x.shape[1], stem.patch_length, stem.stride
    steps = torch.stack([x[:, (t + 1) % L] - x[:, t] for t in range(L)], dim=1)
    x = torch.cat([x, steps * stem.step_scale])
    N, gelu = -(-L // P) * P // S, torch.nn.functional.gelu

    def normalised(norm: torch.nn.LayerNorm, place: torch.Tensor) -> torch.Tensor:
        centred = place - place.mean()
        return centred / (centred.square().mean() + norm.eps).sqrt() * norm.weight + norm.bias

    def answer(conv: torch.nn.Conv1d, window: torch.Tensor) -> torch.Tensor:
        return torch.einsum("fcm,cm->f", conv.weight, window) + conv.bias

    places = []
    for n in range(N):
        filters = []
        for i in range(BANKS):
            reach = S * 2**i
            window = x[:, [(n * S + m) % L for m in range(-reach, reach + 1)]]
            filters.append(answer(stem.banks[i], window))
        places.append(gelu(normalised(stem.norm, torch.cat(filters))))
    for norm, layer in zip(stem.layer_norms, stem.layers, strict=True):
        h = torch.stack([normalised(norm, place) for place in places], dim=1)
        near = [[(n + m) % N for m in range(-(KERNEL // 2), KERNEL // 2 + 1)] for n in range(N)]
        places = [places[n] + gelu(answer(layer, h[:, near[n]])) for n in range(N)]
    h, width = torch.stack(places, dim=1), P // S
    firsts = [first - width // 2 for first in range(0, N, width)]
    return torch.stack(
        [answer(stem.proj, h[:, [(n + m) % N for m in range(2 * width)]]) for n in firsts]
    )


@pytest.mark.parametrize("length", [1, 5, 6, 24, 31])
@pytest.mark.parametrize(("patch_length", "stride"), [(6, 2), (6, 1), (1, 1), (5, 5)])
@pytest.mark.parametrize(
    ("stem_of", "by_hand"), [(kernel_stem, kernels_by_hand), (conv_stem, convolutions_by_hand)]
)
def test_the_fast_stem_is_the_one_written_out(
    stem_of, by_hand, length: int, patch_length: int, stride: int
) -> None:
    stem = stem_of(patch_length, stride)
    x = torch.randn(2, 2, length, dtype=torch.float64)
    tokens, mask = stem(x, None)
    assert mask is None
    expected = torch.stack([by_hand(stem, series) for series in x])
    torch.testing.assert_close(tokens, expected, rtol=1e-12, atol=1e-12)


@STEMS
@given(patches=st.integers(1, 6), turn=st.integers(-7, 7), seed=st.integers(0, 99))
def test_rotating_by_whole_patches_rotates_the_tokens(
    stem_of, patches: int, turn: int, seed: int
) -> None:
    stem = stem_of()
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1, 2, 6 * patches, dtype=torch.float64, generator=generator)
    tokens, _ = stem(x, None)
    rotated, _ = stem(x.roll(6 * turn, dims=-1), None)
    torch.testing.assert_close(rotated, tokens.roll(turn, dims=1), rtol=1e-12, atol=1e-12)


@STEMS
@given(length=st.integers(1, 40), extra=st.integers(0, 30))
def test_padding_changes_no_token(stem_of, length: int, extra: int) -> None:
    stem = stem_of()
    x = torch.randn(2, 2, length, dtype=torch.float64)
    padded = torch.cat([x, torch.full((2, 2, extra), torch.nan, dtype=x.dtype)], dim=2)
    mask = torch.arange(length + extra).expand(2, -1) < length
    tokens, real = stem(padded, mask)
    expected, _ = stem(x, None)
    T = expected.shape[1]
    assert real.tolist() == [[t < T for t in range(tokens.shape[1])]] * 2
    torch.testing.assert_close(tokens[:, :T], expected, rtol=1e-12, atol=1e-12)


@STEMS
def test_a_missing_sample_counts_as_zero(stem_of) -> None:
    stem = stem_of()
    x = torch.randn(1, 2, 24, dtype=torch.float64)
    mask = torch.ones(1, 24, dtype=torch.bool)
    mask[0, 3] = False
    expected, _ = stem(x.masked_fill(~mask[:, None], 0.0), None)
    torch.testing.assert_close(stem(x, mask)[0], expected, rtol=1e-12, atol=1e-12)


def test_periodic_repeats_each_series_with_its_own_length() -> None:
    x = torch.tensor([[[1.0, 2, 3, 0, 0]], [[4, 0, 0, 0, 0]], [[0, 0, 0, 0, 0]]])
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]]).bool()
    expected = [[3, 1, 2, 3, 1, 2], [4, 4, 4, 4, 4, 4], [0, 0, 0, 0, 0, 0]]
    assert periodic(x, 1, 5, mask)[:, 0].tolist() == expected


@given(length=st.integers(1, 9), before=st.integers(0, 20), after=st.integers(0, 20))
def test_periodic_of_whole_series_is_the_index(length: int, before: int, after: int) -> None:
    x = torch.arange(2.0 * length).reshape(1, 2, length)
    expected = x[..., [t % length for t in range(-before, after)]]
    assert torch.equal(periodic(x, before, after, None), expected)


def test_calibrated_filters_answer_with_variance_one_and_to_shapes_alone() -> None:
    stem = kernel_stem()
    x = 0.01 * torch.randn(50, 2, 30, dtype=torch.float64).cumsum(-1)
    mask = torch.arange(30) < torch.randint(10, 31, (50, 1))
    stem.calibrate(x, mask)
    lengths = mask.sum(dim=1).tolist()  # each series goes on with its own
    whole = [s[:, [(t - 16) % n for t in range(62)]] for s, n in zip(x, lengths, strict=True)]
    for response in stem.responses(torch.stack(whole), 16, 30):
        assert response.detach().square().mean().item() == pytest.approx(1, rel=1e-6)
    again = stem.filters.detach().clone()
    stem.calibrate(x, mask)
    torch.testing.assert_close(stem.filters.detach(), again)
    level = stem.responses(torch.ones(1, 2, 60, dtype=torch.float64), 16, 20)
    assert max(float(r.detach().abs().max()) for r in level) < 1e-6 * float(
        again.abs().max()
    )  # drawn in float32
    stem.calibrate(torch.zeros(3, 2, 30, dtype=torch.float64))  # nothing to scale by
    assert torch.equal(stem.filters, again)


def test_calibrated_steps_spread_as_the_values_do() -> None:
    stem = conv_stem()
    x = 0.1 * torch.randn(50, 2, 30, dtype=torch.float64).cumsum(-1)
    x[:, 1] *= 7
    length = torch.randint(10, 31, (50,))
    mask = torch.arange(30) < length[:, None]
    stem.calibrate(x.masked_fill(~mask[:, None], torch.nan), mask)
    for c in range(2):
        values = torch.cat([s[c, :n] for s, n in zip(x, length, strict=True)])
        steps = torch.cat([s[c, :n].diff() for s, n in zip(x, length, strict=True)])
        expected = values.std(correction=0) / steps.square().mean().sqrt()
        assert stem.step_scale[c].item() == pytest.approx(expected.item(), rel=1e-12)
    for still in (torch.ones(3, 2, 1), torch.ones(3, 2, 9)):  # no steps to scale
        stem.calibrate(still.double())
        assert stem.step_scale.tolist() == [[1], [1]]


@STEMS
def test_gradients_of_the_stem(stem_of) -> None:
    stem = stem_of()
    x = torch.randn(1, 2, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: stem(x, None)[0], x)


# -------------------------------------------------------------------------- no hidden positions


def base(length: int = 60, dtype: torch.dtype = torch.float64) -> Lagformer:
    torch.manual_seed(0)
    config = LagformerConfig.preset("base", series_length=length)
    return Lagformer(config).to(dtype).eval()


def rotated_logits(model: Lagformer) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of series, and of the series rotated by whole tokens."""
    x = torch.randn(3, 1, 60, dtype=torch.float64)
    turn = 7 * model.config.patch_length
    return model(x), model(x.roll(turn, dims=-1))


def test_equal_lag_vectors_make_rotation_by_tokens_invisible() -> None:
    model = base()
    with torch.no_grad():
        for block in model.blocks:
            block.attention.lags.copy_(block.attention.lags[:, :1].expand_as(block.attention.lags))
    plain, rotated = rotated_logits(model)
    torch.testing.assert_close(rotated, plain, rtol=1e-10, atol=1e-12)


def test_equal_lag_vectors_let_permuted_tokens_permute_outputs() -> None:
    model = base()
    tokens = torch.randn(2, 11, model.config.embed_dim, dtype=torch.float64)
    order = torch.randperm(11)
    for block in model.blocks:
        lags = block.attention.lags
        with torch.no_grad():
            lags.copy_(lags[:, :1].expand_as(lags))
        torch.testing.assert_close(
            block(tokens[:, order], None), block(tokens, None)[:, order], rtol=1e-10, atol=1e-12
        )


def test_rotation_acts_through_the_ends_of_the_lag_table_alone() -> None:
    """With lags of period T a rotation by tokens is invisible; without, it is not."""
    model = base()
    plain, rotated = rotated_logits(model)
    assert (plain - rotated).abs().max() > 1e-6
    T = model.config.num_tokens
    with torch.no_grad():
        for block in model.blocks:
            lags = block.attention.lags  # m = -(T - 1) … T - 1; m and m - T become one lag
            lags[:, : T - 1] = lags[:, T:]
    plain, rotated = rotated_logits(model)
    torch.testing.assert_close(rotated, plain, rtol=1e-10, atol=1e-12)


def test_the_patch_stem_pads_the_last_patch_with_zeros() -> None:
    stem = PatchStem(1, 4, 3)
    x = torch.randn(1, 1, 6)
    assert torch.equal(stem(x, None)[0], stem(torch.nn.functional.pad(x, (0, 2)), None)[0])
