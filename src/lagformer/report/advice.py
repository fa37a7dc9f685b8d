"""What an engineer should do next, from the figures: one sentence each, the gravest first."""

from __future__ import annotations

import numpy as np

from lagformer.data import AuditReport
from lagformer.report.assessment import Assessment
from lagformer.report.subject import Subject

_NAMED = 5  # series of a longer list


def advice(subject: Subject, found: Assessment | None, verdict: AuditReport | None) -> list[str]:
    """Return the sentences; an empty list if there is nothing to do."""
    said = [subject.stopped] if subject.stopped else []
    said += [f"{w[0].upper()}{w[1:].rstrip('.')}." for w in subject.warnings]
    if subject.changed:
        said.append(
            f"{subject.changed} predictions differ from those the run stored: another version or "
            "processor rounds differently, or the model was replaced."
        )
    if found is not None and found.evaluation.seen_in_training:
        said.append(
            f"{found.evaluation.seen_in_training} of the {found.evaluation.series} scored series "
            "were in training too and flatter the score: take them out and score again."
        )
    if verdict is not None:
        cures = {f.cure: f for f in reversed(verdict.findings) if f.verdict == "leak"}
        said += [f"{cure} ({f.check}: {f.detail}.)" for cure, f in reversed(cures.items())]
    if found is not None:
        said += _from_scores(found)
    return said


def _from_scores(found: Assessment) -> list[str]:
    said = []
    score = found.evaluation.score
    low, high = score.macro_f1_interval
    commonest = max(map(sum, score.confusion)) / found.evaluation.series
    if score.accuracy_interval[0] <= commonest:
        said.append(
            f"Do not use it yet: it is not shown to do better than always naming the most frequent "
            f"class, which is right in {commonest:.3f} of the cases."
        )
    if high - low > 0.1:
        said.append(
            f"{found.evaluation.series} series leave the score uncertain by {high - low:.2f}: "
            "gather more before comparing models on it."
        )
    counts = np.array(score.confusion)
    np.fill_diagonal(counts, 0)
    if counts.any():
        i, j = np.unravel_index(counts.argmax(), counts.shape)
        said.append(
            f"The most frequent error: {counts[i, j]} of {sum(score.confusion[i])} series of class "
            f"{score.classes[i]} are taken for {score.classes[j]}."
        )
    if bold := found.bold_errors:
        named = ", ".join(bold[:_NAMED]) + (" and so on" if len(bold) > _NAMED else "")
        said.append(
            f"Check the labels of {len(bold)} series that are wrong with a probability over 0.9: "
            f"{named}."
        )
    gap = found.reliability.confidence - found.reliability.accuracy
    if abs(gap) > 0.02:
        word = "high" if gap > 0 else "low"
        said.append(
            f"Probabilities are {abs(gap):.2f} too {word} on average: do not take one for the "
            "chance of being right without correcting it."
        )
    return said
