"""Exported files: the numbers of predict_proba, at any batch size, or no file at all."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lagformer import LagformerClassifier, export
from lagformer.data import Collection
from lagformer.export import export_classifier

onnxruntime = pytest.importorskip("onnxruntime")

Y = np.arange(12) % 2
X = 40 + 3 * np.sin((0.4 + 0.8 * Y[:, None]) * np.arange(23) + np.arange(12)[:, None])
TWO = np.stack([X, np.full_like(X, 7.5)], axis=1)
FORMATS = [".onnx", ".pt2"]


@pytest.fixture(scope="module")
def model() -> LagformerClassifier:
    return fitted(X, labels=np.array(["slow", "fast"])[Y])


def fitted(
    series: Any, labels: Any = Y, preset: str = "olympiad", **parameters: Any
) -> LagformerClassifier:
    return LagformerClassifier(
        preset, max_epochs=3, learning_rate=3e-3, random_state=0, **parameters
    ).fit(series, labels)


def run(path: Path, series: np.ndarray) -> np.ndarray:
    """What another program does with the file."""
    series = series.astype(np.float32)
    if path.suffix == ".onnx":
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return session.run(["probabilities"], {"series": series})[0]
    return torch.export.load(path).module()(torch.from_numpy(series)).detach().numpy()


@pytest.mark.parametrize("suffix", FORMATS)
def test_raw_series_in_probabilities_out(
    suffix: str, model: LagformerClassifier, tmp_path: Path
) -> None:
    path = tmp_path / f"m{suffix}"
    known = Collection.from_arrays(X)
    result = export_classifier(model, path, series=known)
    assert result.length == 23
    assert result.checked == 5 + 12
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    differences = [0.0]
    for n in (1, 3, 12):
        found = run(path, X[:n, None])
        expected = model.predict_proba(X[:n])
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
        differences.append(np.abs(found - expected).max())
    assert result.difference >= max(differences[3:]), "it says what the given series showed"
    if suffix == ".onnx":
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        assert session.get_inputs()[0].shape == ["batch", 1, 23]
        classes = session.get_modelmeta().custom_metadata_map["classes"]
    else:
        extra = {"lagformer.json": ""}
        torch.export.load(path, extra_files=extra)
        classes = json.loads(extra["lagformer.json"])["classes"]
    assert json.loads(classes) == ["fast", "slow"]


@pytest.mark.parametrize("suffix", FORMATS)
def test_scaling_by_series_channels_and_another_length(suffix: str, tmp_path: Path) -> None:
    """A constant channel becomes zeros; what is huge or tiny, and another length, work."""
    model = fitted(TWO, normalize=True)
    path = tmp_path / f"m{suffix}"
    assert export_classifier(model, path, length=31).length == 31
    longer = np.concatenate([TWO, TWO[:, :, :8]], axis=2)
    longer = longer * np.array([1, 1e30, 1e-30, -5])[np.arange(12) % 4, None, None]
    np.testing.assert_allclose(
        run(path, longer), model.predict_proba(longer.astype(np.float32)), rtol=0, atol=1e-5
    )


def test_the_other_preset_and_a_channel_constant_in_training(tmp_path: Path) -> None:
    model = fitted(TWO, preset="base")
    export_classifier(model, tmp_path / "m.pt2")
    np.testing.assert_allclose(
        run(tmp_path / "m.pt2", TWO), model.predict_proba(TWO), rtol=0, atol=1e-5
    )


def test_nothing_else_is_touched(model: LagformerClassifier, tmp_path: Path) -> None:
    states = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    before = model.predict_proba(X)
    export_classifier(model, tmp_path / "m.pt2")
    assert np.array_equal(model.predict_proba(X), before)
    assert "_attend" not in vars(model.model_.blocks[0].attention)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])  # noqa: NPY002
    program = torch.export.load(tmp_path / "m.pt2")
    assert "lagformer" not in str(program.graph), "a loaded file needs no lagformer"


def test_wrong_numbers_are_not_written(
    model: LagformerClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.pt2"
    path.write_text("what was there")

    def without_scaling(self: export.Pipeline, series: torch.Tensor) -> torch.Tensor:
        return self.model(series).softmax(dim=1)

    monkeypatch.setattr(export.Pipeline, "forward", without_scaling)
    with pytest.raises(ValueError, match=r"is not written: its probabilities would differ"):
        export_classifier(model, path)
    assert path.read_text() == "what was there"
    assert len(list(tmp_path.iterdir())) == 1


def test_series_that_float32_cannot_tell_apart_are_seen(tmp_path: Path) -> None:
    """The file takes float32: a level of 1e9 leaves nothing of a sine."""
    far = X + 1e9
    model = fitted(far)
    with pytest.raises(ValueError, match="would differ"):
        export_classifier(model, tmp_path / "m.pt2", series=Collection.from_arrays(far))


def test_what_the_exporter_says_is_one_line(
    model: LagformerClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> bytes:
        raise RuntimeError("no such operator\nand 100 lines more")

    monkeypatch.setattr(export, "_pt2", fails)
    with pytest.raises(ValueError, match=r"cannot be exported to \.pt2: no such operator$"):
        export_classifier(model, tmp_path / "m.pt2")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("m.pb", {}, r"m\.pb must end in \.onnx or \.pt2"),
        ("m.pt2", {"length": 0}, "length must be at least 1, got 0"),
        ("m.pt2", {"series": Collection.from_arrays(X[:, :9], source="s")}, "s has a series of 9"),
        (
            "m.pt2",
            {"series": Collection.from_arrays(np.where(X > 42, np.nan, X)[:, :23], missing="mask")},
            "missing values|a series of",
        ),
        ("m.pt2", {"series": Collection.from_arrays(TWO)}, r"X has 2 channel\(s\)"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_bad_arguments(
    name: str, options: dict[str, Any], message: str, model: LagformerClassifier, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        export_classifier(model, tmp_path / name, **options)
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_what_to_install(
    model: LagformerClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=r"onnx is not installed: pip install 'lagformer\[export\]'"
    ):
        export_classifier(model, tmp_path / "m.onnx")
    export_classifier(model, tmp_path / "m.pt2")
