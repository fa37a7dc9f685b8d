"""What the page is made of: curves, ticks, calibration, lag kernels and their periods."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from lagformer.attention import RelativeLinearAttention, reference
from lagformer.model import Lagformer, LagformerConfig
from lagformer.report.kernels import kernels_of, period
from lagformer.report.reliability import reliability
from lagformer.report.svg import Plot, heat_map, nice_ticks, padded_range, thinned
from lagformer.training.loop import seeded

# ------------------------------------------------------------------------------------------- svg


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(1, 6))
def test_ticks_are_round_evenly_spaced_and_inside(low: float, width: float, count: int) -> None:
    ticks = nice_ticks(low, low + width, count)
    assert len(ticks) <= 2 * count + 1
    assert all(low - 1e-6 * width <= t <= low + width + 1e-6 * width for t in ticks)
    if len(ticks) > 1:
        step = ticks[1] - ticks[0]
        np.testing.assert_allclose(np.diff(ticks), step, rtol=1e-6)
        mantissa = step / 10.0 ** np.floor(np.log10(step * (1 + 1e-9)))
        assert min(abs(mantissa - m) for m in (1, 2, 5)) < 1e-3


def test_ticks_of_known_ranges() -> None:
    assert nice_ticks(0, 500, 5) == [0, 100, 200, 300, 400, 500]
    assert nice_ticks(0.5, 1, 4) == pytest.approx([0.5, 0.6, 0.7, 0.8, 0.9, 1])
    assert nice_ticks(0, 1, 0) == []


def test_a_long_curve_keeps_its_extremes() -> None:
    y = np.random.default_rng(0).standard_normal(100_000)
    y[12_345], y[54_321] = 50, -50
    x, kept = thinned(np.arange(len(y), dtype=float), y)
    assert len(x) <= 1200
    assert (kept.max(), kept.min()) == (50, -50)
    assert (np.diff(x) > 0).all()
    np.testing.assert_array_equal(kept, y[x.astype(int)])


def test_words_are_text_in_a_plot() -> None:
    plot = Plot('<b a="1">', (0, 1), (0, 1), x_label="<i>", y_label="&")
    plot.text(0.5, 0.5, "</svg><script>")
    svg = str(Markup(plot))
    assert "<b" not in svg
    assert "<i>" not in svg
    assert "<script" not in svg
    assert 'aria-label="&lt;b a=&#34;1&#34;&gt;"' in svg


def test_places_in_a_plot() -> None:
    plot = Plot("d", (0, 10), (0, 4), ticks=(0, 0))
    plot.dots(5, 1, "main")
    plot.line([0, 5, 10], [0, np.nan, 4], "main")
    plot.box((2, 3), "marked")
    svg = str(Markup(plot))
    assert 'cx="50.0%" cy="75.0%"' in svg
    assert 'd="M0 1000 M1000 0"' in svg, "NaN lifts the pen"
    assert '<rect class="marked" x="20.0%" y="0.0%" width="10.0%" height="100.0%"/>' in svg


def test_a_single_value_has_a_range() -> None:
    plot = Plot("d", (3, 3), padded_range([7.0, 7.0], [np.nan]))
    assert plot.x[0] < 3 < plot.x[1]
    assert plot.y[0] < 7 < plot.y[1]


def test_an_empty_cell_of_a_matrix_is_not_drawn() -> None:
    svg = str(heat_map(np.array([[1.0, 0.0], [0.5, 0.5]]), "m"))
    assert svg.count('class="heat"') == 3


# ------------------------------------------------------------------------------------ calibration


def test_calibration_error_of_a_calibrated_and_of_a_boastful_model() -> None:
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1, 100_000)
    right = rng.random(100_000) < confidence
    # Ten bins of 10,000: each accuracy is known to ± 0.005 (1 sd), its mean deviation to 0.004.
    assert reliability(confidence, right).error < 0.01
    found = reliability(np.full(1000, 0.9), rng.random(1000) < 0.6)
    assert found.error == pytest.approx(0.3, abs=0.05)
    assert found.confidence == pytest.approx(0.9)


def test_bins_by_hand() -> None:
    confidence = np.array([0.9, 0.6, 0.8, 0.7])
    found = reliability(confidence, np.array([True, False, True, True]))
    assert [b.confidence for b in found.bins] == [0.6, 0.7, 0.8, 0.9]
    assert found.error == pytest.approx((0.6 + 0.3 + 0.2 + 0.1) / 4)
    assert sum(b.series for b in found.bins) == 4


# ---------------------------------------------------------------------------------------- periods


@pytest.mark.parametrize("true", [3.0, 4.7, 7.0, 12.5])
def test_the_period_of_a_wave_in_noise(true: float) -> None:
    lags = np.arange(-49, 50)
    noise = 0.3 * np.random.default_rng(1).standard_normal(99)
    found = period(1 + np.cos(2 * np.pi * lags / true) + noise)
    assert found is not None
    assert found.clear
    # Between two ordinates, which lie true²/99 apart.
    assert found.lags == pytest.approx(true, abs=0.5 * true**2 / 99)


def test_noise_is_seldom_called_periodic() -> None:
    rng = np.random.default_rng(2)
    clear = [p.clear for _ in range(2000) if (p := period(rng.standard_normal(99)))]
    # One of a hundred, and three standard deviations of 2000 draws.
    assert np.mean(clear) < 0.01 + 3 * np.sqrt(0.01 * 0.99 / 2000)


@pytest.mark.parametrize("kernel", [np.ones(99), np.linspace(0, 1, 99), np.ones(5), np.ones(1)])
def test_flat_straight_and_short_kernels_have_no_period(kernel: np.ndarray) -> None:
    assert period(kernel) is None


# ---------------------------------------------------------------------------------------- kernels


def model(attention: str = "relative") -> Lagformer:
    config = LagformerConfig(
        40, 1, 2, patch_length=4, embed_dim=8, num_heads=2, head_dim=3, num_blocks=2, mlp_dim=8,
        attention=attention,
    )  # fmt: skip
    with seeded(0):
        return Lagformer(config)


def test_kernels_are_those_of_the_mean_query() -> None:
    x = torch.randn(6, 1, 40, generator=torch.Generator().manual_seed(0))
    net = model()
    found = kernels_of(net, x)
    assert [(k.block, k.head) for k in found] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    net, x = net.double().requires_grad_(False), x.double()
    block = net.blocks[0]
    tokens = block.attention_norm(net.stem(x, None)[0])
    attention = block.attention
    assert isinstance(attention, RelativeLinearAttention)
    phi = lambda z: torch.where(z > 0, z + 1, z.exp())  # noqa: E731
    q, k = (
        phi(proj(tokens)).unflatten(-1, (2, 3)).transpose(1, 2)
        for proj in (attention.q_proj, attention.k_proj)
    )
    r = phi(attention.lags)
    for head in range(2):
        weight = r[head] @ q[:, head].mean(dim=(0, 1))
        np.testing.assert_allclose(found[head].weight, weight / weight.mean(), rtol=1e-12)
        lag = torch.einsum("nil,ijl->nij", q[:, head], r[head][reference.lag_index(10, 10, 9)])
        key = torch.einsum("nil,njl->nij", q[:, head], k[:, head])
        share = float(lag.sum() / (lag.sum() + key.sum()))
        assert found[head].share == pytest.approx(share, rel=1e-6)
        assert found[head].samples_per_token == 4
        np.testing.assert_array_equal(found[head].lags, 4 * np.arange(-9, 10))


def test_scalar_lags_have_kernels_too() -> None:
    net = model("toeplitz")
    with torch.no_grad():
        wave = torch.cos(2 * torch.pi * torch.arange(-9, 10) / 3)
        net.blocks[1].attention.log_weights[1] = wave
    found = kernels_of(net, torch.randn(3, 1, 40))[3]
    weight = wave.double().exp().numpy()
    np.testing.assert_allclose(found.weight, weight / weight.mean(), rtol=1e-6)
    assert found.period is not None
    assert found.period.lags == pytest.approx(3, abs=0.25)
    assert found.share is None


def test_a_model_is_not_changed_by_looking_at_it() -> None:
    net = model()
    before = {name: t.clone() for name, t in net.state_dict().items()}
    state = torch.random.get_rng_state()
    kernels_of(net, torch.randn(3, 1, 40, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())
    assert net.head.weight.dtype == torch.float32
