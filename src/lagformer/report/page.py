"""One self-contained HTML page about a trained model: the answer first, then the evidence.

Nothing is loaded from anywhere, no script runs: a content security policy in the page forbids it.
Every text from data goes through jinja2's escaping.
"""

from __future__ import annotations

import functools
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jinja2 import Environment, PackageLoader, StrictUndefined

from lagformer import __version__
from lagformer.data import AuditReport
from lagformer.report.advice import advice
from lagformer.report.assessment import Assessment, Example, assess, audited
from lagformer.report.charts import (
    CHANNELS,
    kernel_plot,
    loss_plot,
    reliability_plot,
    series_plots,
    validation_plot,
)
from lagformer.report.subject import HONEST_FIRST, Subject
from lagformer.report.svg import heat_map, padded_range
from lagformer.scores import Score
from lagformer.training.checkpoint import write_atomically

_TABLE_CLASSES = 12  # up to so many, the confusion matrix is a table of numbers
_LISTED = 12  # of the most frequent confusions


@dataclass(frozen=True)
class Report:
    """A page and the figures on it; None where a run that was stopped has none."""

    html: str
    subject: Subject
    assessment: Assessment | None
    audit: AuditReport | None

    def as_dict(self) -> dict[str, Any]:
        """Return the headline figures as an object json.dumps takes."""
        found: dict[str, Any] = {
            "title": self.subject.title,
            "stopped": self.subject.stopped or None,
            "audit": None if self.audit is None else self.audit.verdict,
        }
        if self.assessment is None:
            return found
        score, deletion = self.assessment.evaluation.score, self.assessment.deletion
        return found | {
            "series": self.assessment.evaluation.series,
            "seen_in_training": self.assessment.evaluation.seen_in_training,
            "macro_f1": score.macro_f1,
            "macro_f1_interval": score.macro_f1_interval,
            "accuracy": score.accuracy,
            "accuracy_interval": score.accuracy_interval,
            "calibration_error": self.assessment.reliability.error,
            "deletion": None
            if deletion is None
            else {
                "series": deletion.series,
                "marked": deletion.marked,
                "random": deletion.random,
                "ratio": deletion.ratio,
            },
        }

    def lines(self) -> list[str]:
        """Return the same figures as sentences."""
        said = [self.subject.stopped] if self.subject.stopped else []
        if self.audit is not None:
            said.append(f"audit of {self.audit.dataset}: {self.audit.verdict}")
        if self.assessment is None:
            return said
        evaluation, deletion = self.assessment.evaluation, self.assessment.deletion
        low, high = evaluation.score.macro_f1_interval
        said.append(
            f"{self.subject.title}: macro F1 {evaluation.score.macro_f1:.4f} "
            f"(95 %: {low:.3f}–{high:.3f}) on {evaluation.series} series"
        )
        if evaluation.seen_in_training:
            said.append(f"warning: {evaluation.seen_in_training} of them were in training too")
        said.append(f"calibration error {self.assessment.reliability.error:.4f}")
        if deletion is not None:
            ratio = "" if deletion.ratio is None else f", {deletion.ratio:.1f} times as much"
            said.append(
                f"deletion test: marked spans lower the log odds by {deletion.marked:.3f}, random "
                f"ones by {deletion.random:.3f}{ratio}"
            )
        return said


def report(subject: Subject, *, command: str = "") -> Report:
    """Measure and lay out a report; `command` is the line that asked for it, to be printed.

    Raises ValueError as `evaluate` does: for data without labels, or all of it seen in training.
    """
    found = None
    if subject.model is not None:
        assert subject.test is not None
        found = assess(subject.model, subject.test, subject.train)
    verdict = audited(subject)
    context: dict[str, Any] = {
        "subject": subject,
        "found": found,
        "audit": verdict,
        "advice": advice(subject, found, verdict),
        "loss": loss_plot(subject.curves),
        "validation": validation_plot(subject.curves[0]),
        "facts": subject.facts | _versions(),
        "report_command": command,
        "groups": _groups(subject.rows),
    }
    if found is not None:
        context |= _evidence(subject, found)
    return Report(
        environment().get_template("report.html.j2").render(context), subject, found, verdict
    )


def write_page(html: str, path: Path) -> None:
    """Write a page, whole or not at all. ValueError for a folder that is not there."""
    if not path.parent.is_dir():
        raise ValueError(f"{path.parent} is no folder: make it first, or name another file")
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name the page, such as {path / 'report.html'}")
    write_atomically(path, html.encode())


@functools.cache
def environment() -> Environment:
    """Return the templates' environment: escaping on, an unknown name an error."""
    found = Environment(
        loader=PackageLoader("lagformer.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["percent"] = lambda share: f"{100 * share:.1f} %"
    found.filters["figure"] = lambda value, digits=3: f"{value:.{digits}f}".replace("-", "−")
    found.filters["grouped"] = lambda count: f"{count:,}"
    found.globals["version"] = __version__
    return found


def _evidence(subject: Subject, found: Assessment) -> dict[str, Any]:
    """Return what the sections of a scored model show."""
    data, model = subject.test, subject.model
    assert data is not None
    assert model is not None
    score = found.evaluation.score
    limits = padded_range(*[k.weight for k in found.kernels]) if found.kernels else (0.0, 1.0)
    channels = data.values.shape[1]

    def drawn(examples: list[Example]) -> list[dict[str, Any]]:
        return [{"of": e, "plots": series_plots(data, e.index, e.spans)} for e in examples]

    return {
        "score": score,
        "classes": class_table(score),
        "confusions": confusions(score)[:_LISTED],
        "matrix": None if len(score.classes) <= _TABLE_CLASSES else _matrix(score),
        "reliability": reliability_plot(found.reliability),
        "hardest": drawn(found.hardest),
        "certain": drawn(found.certain),
        "channels": f"the first {CHANNELS} of {channels} channels" if channels > CHANNELS else "",
        "kernels": [{"of": k, "plot": kernel_plot(k, limits)} for k in found.kernels],
        "clear": sum(k.period is not None and k.period.clear for k in found.kernels),
        "parameters": model.model_.num_parameters,
    }


def class_table(score: Score) -> list[dict[str, Any]]:
    """Return per class: label, true and predicted series, recall, precision and F1."""
    counts = np.array(score.confusion)
    rows = []
    for i, label in enumerate(score.classes):
        true, predicted, right = counts[i].sum(), counts[:, i].sum(), counts[i, i]
        rows.append(
            {
                "label": label,
                "true": int(true),
                "predicted": int(predicted),
                "recall": right / true if true else None,
                "precision": right / predicted if predicted else None,
                "f1": 2 * right / (true + predicted),
            }
        )
    return rows


def confusions(score: Score) -> list[dict[str, Any]]:
    """Return what is taken for what, the most frequent first."""
    counts = np.array(score.confusion)
    np.fill_diagonal(counts, 0)
    pairs = sorted(np.argwhere(counts).tolist(), key=lambda pair: -counts[*pair])
    return [
        {
            "true": score.classes[i],
            "predicted": score.classes[j],
            "count": int(counts[i, j]),
            "of": sum(score.confusion[i]),
        }
        for i, j in pairs
    ]


def _matrix(score: Score) -> Any:
    counts = np.array(score.confusion, dtype=float)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return heat_map(
        shares,
        f"Confusion matrix of {len(counts)} classes: rows are true, columns predicted classes, "
        f"darker cells hold more of a row; {np.trace(counts):.0f} of {counts.sum():.0f} series lie "
        "on the diagonal.",
    )


def _groups(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one line per data and method of a run: the mean over its seeds, and the interval."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["data"], row["method"]), []).append(row)
    found = [
        {
            "data": data,
            "method": method,
            "seeds": len(members),
            "mean": float(np.mean([m["macro_f1"] for m in members])),
            "sd": float(np.std([m["macro_f1"] for m in members], ddof=1))
            if len(members) > 1
            else None,
            "low": min(m["macro_f1_interval"][0] for m in members),
            "high": max(m["macro_f1_interval"][1] for m in members),
            "parameters": members[0]["parameters"],
        }
        for (data, method), members in groups.items()
    ]
    return sorted(found, key=lambda g: (HONEST_FIRST.index(g["data"]), -g["mean"]))


def _versions() -> dict[str, str]:
    """Return the versions this report was made with."""
    return {
        "lagformer, at the report": __version__,
        "torch, at the report": torch.__version__,
        "numpy, at the report": np.__version__,
        "Python, at the report": platform.python_version(),
    }
