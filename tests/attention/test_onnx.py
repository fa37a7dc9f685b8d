"""ONNX: onnxruntime computes the numbers that the modules do."""

from __future__ import annotations

import logging
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lagformer.attention import (
    LinearAttention,
    RelativeLinearAttention,
    ToeplitzLinearAttention,
)

onnxruntime = pytest.importorskip("onnxruntime")


def run(module: nn.Module, args: tuple[Tensor, ...], *others: tuple[Tensor, ...]) -> None:
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it misses torchvision aloud
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own
        program = torch.onnx.export(module.eval(), args, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(
        program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [i.name for i in session.get_inputs()]
    for inputs in (args, *others):
        feed = dict(zip(names, (x.numpy() for x in inputs), strict=True))
        (found,) = session.run(None, feed)
        expected = module(*inputs).detach().numpy()
        # the same float32 sums in another order
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


MODULES = {
    "linear": lambda: LinearAttention(6, 2, 3),
    "linear causal": lambda: LinearAttention(6, 2, 3, causal=True),
    "relative": lambda: RelativeLinearAttention(6, 2, 3, max_lag=8),
    "relative short": lambda: RelativeLinearAttention(6, 2, 3, max_lag=2),
    "relative causal": lambda: RelativeLinearAttention(6, 2, 3, max_lag=8, causal=True),
    "toeplitz": lambda: ToeplitzLinearAttention(6, 2, 3, max_lag=8),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "masked"),
    [*((name, False) for name in MODULES), ("linear", True), ("relative", True)],
)
def test_onnxruntime_agrees(name: str, masked: bool) -> None:
    torch.manual_seed(0)
    module = MODULES[name]()
    x, y = torch.randn(2, 9, 6), torch.randn(2, 9, 6)
    if masked:
        run(module, (x, torch.arange(9).expand(2, 9) > 2), (y, torch.arange(9).expand(2, 9) < 5))
    else:
        run(module, (x,), (y,))


@pytest.mark.slow
def test_lengths_where_an_fft_is_quicker() -> None:
    """ONNX knows no complex numbers: exported attention sums directly."""
    torch.manual_seed(0)
    run(RelativeLinearAttention(2, 1, 2, max_lag=79), (torch.randn(1, 80, 2),))
