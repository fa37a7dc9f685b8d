"""A trained classifier as one file for other runtimes: raw series in, probabilities out.

The file takes series (batch, C, L) in float32, any batch and one length, and holds the scaling, the
network and the softmax. It is written only if it gives the numbers that the classifier does.
"""

from __future__ import annotations

import copy
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from lagformer import __version__
from lagformer.attention import (
    RelativeLinearAttention,
    ToeplitzLinearAttention,
    relative_linear_attention,
    toeplitz_linear_attention,
)
from lagformer.classifier import LagformerClassifier
from lagformer.data import Collection
from lagformer.saving import encode_labels
from lagformer.training.checkpoint import write_atomically

TOLERANCE = 1e-5
"""Probabilities may differ by so much: float32 sums in another order, through every block."""

_RANDOM_SERIES = 5
_EXTRAS = ("onnx", "onnxruntime", "onnxscript")
_Run = Callable[[NDArray[np.float32]], NDArray[np.float32]]


@dataclass(frozen=True)
class Exported:
    """What was written, and how near it comes to the classifier."""

    length: int
    """Samples of every series that the file takes."""
    checked: int
    """Series that were compared."""
    difference: float
    """The largest one between the file's probabilities and the classifier's."""


def export_classifier(
    classifier: LagformerClassifier,
    path: Path,
    *,
    length: int | None = None,
    series: Collection | None = None,
) -> Exported:
    """Write a fitted classifier to `path`, as its suffix says: ``.onnx``, or torch's ``.pt2``.

    Args:
        classifier: a fitted classifier.
        path: the file; one that is there is replaced, at once or not at all. Its metadata name the
            classes in the order of the probabilities (ONNX: the key ``classes``; .pt2: the extra
            file ``lagformer.json``).
        length: samples of a series; by default those of the training series.
        series: further series to compare on, beside random ones.

    Raises ValueError for another suffix, packages that are not installed, a length below 1, series
    of another length or with missing values, and for a file whose numbers are not the
    classifier's: nothing is written then.
    """
    if path.suffix not in (".onnx", ".pt2"):
        raise ValueError(f"{path} must end in .onnx or .pt2")
    if path.suffix == ".onnx" and (absent := [name for name in _EXTRAS if find_spec(name) is None]):
        raise ValueError(f"{absent[0]} is not installed: pip install 'lagformer[export]'")
    length = classifier.config_["series_length"] if length is None else length
    if length < 1:
        raise ValueError(f"length must be at least 1, got {length}")
    random = _random_series(classifier, length)
    samples = [random[:1], random, *([] if series is None else [_whole(series, length)])]
    expected = [classifier.predict_proba(x) for x in samples]
    metadata = {
        "classes": json.dumps(encode_labels(classifier.classes_)["values"]),
        "lagformer": __version__,
    }
    write, load = (_onnx, _load_onnx) if path.suffix == ".onnx" else (_pt2, _load_pt2)
    try:
        with _quiet(), torch.no_grad():
            content = write(Pipeline(classifier), torch.from_numpy(random[:2]).float(), metadata)
            run = load(content)
    except Exception as error:  # the exporters raise what their many parts do
        what = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"this model cannot be exported to {path.suffix}: {what}") from error
    difference = max(
        float(np.abs(run(x.astype(np.float32)) - p).max())
        for x, p in zip(samples, expected, strict=True)
    )
    if not difference <= TOLERANCE:
        raise ValueError(
            f"{path} is not written: its probabilities would differ from the model's by "
            f"{difference:.2g} (float32's rounding explains {TOLERANCE:g})"
        )
    write_atomically(path, content)
    return Exported(length, sum(map(len, samples[1:])), difference)


class Pipeline(nn.Module):
    """What the file computes: scaling in float64, as the classifier does, network, softmax."""

    mean: Tensor
    scale: Tensor

    def __init__(self, classifier: LagformerClassifier) -> None:
        super().__init__()
        self.model = copy.deepcopy(classifier.model_).cpu().eval()
        for module in self.model.modules():
            # The other methods loop over blocks, and their traces are for one batch size alone.
            if isinstance(module, RelativeLinearAttention):
                module._attend = partial(_relative, module)  # type: ignore[method-assign]
            elif isinstance(module, ToeplitzLinearAttention):
                module._attend = partial(_toeplitz, module)  # type: ignore[method-assign]
        scaling = classifier.scaling_
        self.per_series = scaling is None
        if scaling is not None:
            self.register_buffer("mean", torch.from_numpy(scaling.mean))
            self.register_buffer("scale", torch.from_numpy(scaling.scale))

    def forward(self, series: Float[Tensor, "B C L"]) -> Float[Tensor, "B classes"]:
        """Return the probability of each class."""
        x = series.double()
        if self.per_series:
            peak = x.abs().amax(dim=2, keepdim=True)
            x = x / torch.where(peak > 0, peak, 1.0)
            x = x - x.mean(dim=2, keepdim=True)
            deviation = x.square().mean(dim=2, keepdim=True).sqrt()
            x = x / torch.where(deviation > 1e-12, deviation, torch.inf)
        else:
            x = (x - self.mean) / self.scale
        logits: Tensor = self.model(x.float())
        return logits.softmax(dim=1)


def _relative(
    module: RelativeLinearAttention, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None
) -> Tensor:
    phi, lags = module.feature_map, module.lags
    return relative_linear_attention(
        q, k, v, lags, feature_map=phi, causal=module.causal, key_mask=key_mask, method="dense"
    )


def _toeplitz(
    module: ToeplitzLinearAttention, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None
) -> Tensor:
    phi, weights = module.feature_map, module.log_weights.exp()
    return toeplitz_linear_attention(
        q, k, v, weights, feature_map=phi, causal=module.causal, key_mask=key_mask, method="dense"
    )


def _random_series(classifier: LagformerClassifier, length: int) -> NDArray[np.float64]:
    """Normal noise on the training series' level and scale, exact in float32."""
    channels = classifier.model_.config.in_channels
    noise = np.random.default_rng(0).standard_normal((_RANDOM_SERIES, channels, length))
    if classifier.scaling_ is not None:
        scale = classifier.scaling_.scale
        noise = classifier.scaling_.mean + noise * np.where(np.isfinite(scale), scale, 1.0)
    return noise.astype(np.float32).astype(np.float64)


def _whole(series: Collection, length: int) -> NDArray[np.float64]:
    if (lengths := series.lengths).min() < length or lengths.max() > length:
        odd = lengths[lengths != length][0]
        raise ValueError(f"{series.source} has a series of {odd} samples, the file takes {length}")
    if not series.mask[:, :length].all():
        raise ValueError(f"{series.source} has missing values: an exported model takes none")
    return series.values[:, :, :length]


# ----------------------------------------------------------------------------------------- formats


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporters' own warnings, none of which is about the file."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _onnx(pipeline: Pipeline, example: Tensor, metadata: dict[str, str]) -> bytes:
    import onnx

    program = torch.onnx.export(
        pipeline,
        (example,),
        dynamo=True,
        verbose=False,
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        input_names=["series"],
        output_names=["probabilities"],
    )
    assert program is not None
    proto = program.model_proto
    onnx.helper.set_model_props(proto, metadata)
    content: bytes = proto.SerializeToString()
    return content


def _load_onnx(content: bytes) -> _Run:
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def run(series: NDArray[np.float32]) -> NDArray[np.float32]:
        probabilities: NDArray[np.float32] = session.run(None, {"series": series})[0]
        return probabilities

    return run


def _pt2(pipeline: Pipeline, example: Tensor, metadata: dict[str, str]) -> bytes:
    shapes = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(pipeline, (example,), dynamic_shapes=shapes)
    content = io.BytesIO()
    torch.export.save(program, content, extra_files={"lagformer.json": json.dumps(metadata)})
    return content.getvalue()


def _load_pt2(content: bytes) -> _Run:
    module = torch.export.load(io.BytesIO(content)).module()

    def run(series: NDArray[np.float32]) -> NDArray[np.float32]:
        with torch.no_grad():
            probabilities: NDArray[np.float32] = module(torch.from_numpy(series)).numpy()
        return probabilities

    return run
