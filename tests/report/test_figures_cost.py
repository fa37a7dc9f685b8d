"""Measured costs: the fit, the tracked memory, the forms measured."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lagformer.attention import reference
from lagformer.report import figures_cost as cost

LENGTHS = (256, 512, 1024, 2048)


@given(st.floats(0, 3), st.floats(1e-6, 1e6), st.integers(4, 12))
def test_exponent_recovers_a_power_law(p: float, factor: float, n: int) -> None:
    lengths = 100 * 2 ** np.arange(n)
    # A least-squares fit through rounded logarithms of up to 20 in size.
    assert cost.exponent(lengths, factor * lengths.astype(float) ** p) == pytest.approx(
        p, abs=1e-12
    )


def test_exponent_leaves_the_short_half_out() -> None:
    lengths = 2.0 ** np.arange(8)
    costs = lengths**2
    costs[:4] = costs[3]  # a fixed cost hides the law
    assert cost.exponent(lengths, costs) == pytest.approx(2, abs=1e-12)


@pytest.mark.parametrize(
    ("function", "tensors"),
    [
        (lambda x: x, 0),
        (lambda x: x.T[1:], 0),
        (lambda x: x.add_(1), 0),
        (lambda x: x + 1, 1),
        (lambda x: (x + 1).add_(1), 1),
        (lambda x: (x + 1) + 1, 2),
        (lambda x: ((x + 1) + 1) + 1, 2),
        (lambda x: (x + 1) + (x + 2), 3),
        (lambda x: torch.stack([x, x])[0] + 1, 3),
        (lambda x: x.split(4)[0].sum() + x.sum(), 12 / 2048),
    ],
)
def test_peak_bytes_counts_what_is_held(function, tensors: float) -> None:
    x = torch.zeros(16, 32)  # 2048 bytes
    assert cost.peak_bytes(function, (x,)) == tensors * 2048
    assert cost.peak_bytes(function, (x,)) == tensors * 2048


def test_softmax_is_the_formula_with_its_square_matrix() -> None:
    rng = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(300, 8, generator=rng, dtype=torch.float64) for _ in "qkv")
    found = cost.explicit_softmax(q, k, v)
    torch.testing.assert_close(found, reference.softmax_attention(q, k, v), rtol=0, atol=1e-14)
    # Scores and weights are held together: two T × T matrices of float64.
    assert cost.peak_bytes(cost.explicit_softmax, (q, k, v)) == 2 * 300 * 300 * 8


@pytest.fixture(scope="module")
def costs() -> list[cost.Cost]:
    return cost.measure(LENGTHS, seconds=0)


def test_memory_of_softmax_is_quadratic_and_of_the_others_at_most_linear(costs) -> None:
    for form in cost.FORMS:
        own = [c for c in costs if c.form == form.name]
        assert [c.T for c in own] == [T for T in LENGTHS if form.longest >= T]
        assert all(c.seconds > 0 for c in own)
        found = cost.exponent([c.T for c in own], [c.peak_bytes for c in own])
        if form.name.startswith("softmax"):
            assert found == pytest.approx(2, abs=1e-12)
        else:
            assert found < 1.05, form.name  # whole blocks and tables beside the O(T) part


def test_every_form_is_the_attention_it_is_called() -> None:
    rng = torch.Generator().manual_seed(0)
    T, d = 70, cost.HEAD_DIM
    q, k, v = (torch.randn(T, d, generator=rng, dtype=torch.float64) for _ in "qkv")
    for form in cost.FORMS:
        r = torch.randn(2 * form.max_lag(T) + 1, d, generator=rng, dtype=torch.float64)
        if "softmax" in form.name:
            expected = reference.softmax_attention(q, k, v)
        elif "relative" in form.name:
            expected = reference.relative_linear_attention(q, k, v, r)
        else:
            expected = reference.linear_attention(q, k, v)
        torch.testing.assert_close(form.attend(q, k, v, r), expected, rtol=1e-12, atol=1e-13)
    assert [form.max_lag(T) for form in cost.FORMS[1:3]] == [T - 1, 32]


def test_measuring_leaves_threads_and_random_state_alone() -> None:
    threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    torch.set_num_threads(2)
    try:
        cost.measure((64,), seconds=0)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_figure_shows_the_fitted_exponents(check_readable) -> None:
    made_up = [
        cost.Cost(form.name, T, 1e-6 * T**p, round(8 * T**p))
        for form, p in zip(cost.FORMS, (2, 1, 1, 1), strict=True)
        for T in cost.LENGTHS
        if form.longest >= T
    ]
    figure = cost.cost_figure(made_up)
    check_readable(figure)
    for panel in figure.axes:
        assert (panel.get_xscale(), panel.get_yscale()) == ("log", "log")
        labels = [text.get_text() for text in panel.get_legend().get_texts()]
        assert ["2.00" in label for label in labels] == [True, False, False, False]
        assert sum("1.00" in label for label in labels) == 3
    time, memory = (panel.lines[0].get_ydata()[0] for panel in figure.axes)
    assert time == pytest.approx(1e3 * 1e-6 * 256**2)  # milliseconds
    assert memory == pytest.approx(8 * 256**2 / 2**20)  # MiB
    assert math.isclose(figure.axes[0].lines[0].get_xdata()[0], 256)
