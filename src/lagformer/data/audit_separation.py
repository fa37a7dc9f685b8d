"""Does one threshold on one trivial statistic tell the classes apart?

Every statistic, channel and class is tried with a cross-validated stump. What a separation means
depends on where the statistic comes from:

- *digits* (distinct values, repeats, constant runs) may be the signal, a device that is switched
  off, or the digitisation. Noise far below the signal decides: if it removes the separation, the
  class was readable from the last digits alone, and nearly perfect is a leak.
- *recording* (step, written digits, missing values; mean and standard deviation once every series
  was normalised): no signal reaches them, so nearly perfect is a leak.
- *signal* (level, extremes, ends, length, file order) can be the task itself: a warning at most,
  and only when one number alone is nearly perfect.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float64

from lagformer.data import audit_statistics as st
from lagformer.data.audit_report import Finding
from lagformer.data.audit_stump import (
    MIN_SERIES,
    Stump,
    Target,
    best_stump,
    make_target,
    same_stump,
)
from lagformer.data.collection import Collection

FAR_ABOVE_CHANCE = 0.75
NEARLY_PERFECT = 0.9
# Noise tried against a digit statistic, in median standard deviations: -66 to -26 dB.
NOISE_LEVELS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05)
# A separation is gone when at most this share of its excess over chance is left ...
_REMAINDER = 0.25
# ... and stronger noise is not worth it for less than this share.
_WORTHWHILE = 0.1
# Twice the hiding noise leaves the rounding error, step² / 12, under 2 % of the noise's power.
_SAFETY = 2.0
# Every mean this near 0 and every deviation this near 1: the series were normalised one by one.
_NORMALISED = 0.02
# float32 resolves no finer differences between the moments of normalised series.
_FLOAT32_DECIMALS = 6

Kind = Literal["digits", "recording", "signal"]

_DIGITS: dict[str, Callable[[st.Series], st.PerSeries]] = {
    "distinct_values": st.distinct_values,
    "repeated_values": st.repeated_values,
    "constant_run": st.constant_run,
}
_LATTICE = {"quantisation_step": st.quantisation_step, "written_digits": st.written_digits}
_MOMENTS = {"mean": st.mean, "standard_deviation": st.standard_deviation}
_VALUES = {
    "minimum": st.minimum,
    "maximum": st.maximum,
    "first_value": st.first_value,
    "last_value": st.last_value,
}

_NORMALISE = "Normalise every series again, all classes with the same code."
_CURES = {
    "quantisation_step": "Round every series to one step, the coarsest found.",
    "written_digits": "Round every series to one number of digits, the smallest found.",
    "missing_values": "Find out why one class has more gaps; fill them and audit again.",
    "mean": _NORMALISE,
    "standard_deviation": _NORMALISE,
}
_SIGNAL_CURES = {
    "length": "If the recorder chose the lengths, cut every series to one length.",
    "file_order": "Shuffle, stratified by class, before taking a validation split.",
}
_COMPARE = "Ask whether the recording or the task sets it; a model must beat this one threshold."


@dataclass(frozen=True)
class _Statistic:
    kind: Kind
    values: Float64[np.ndarray, "n C"]


def separation(data: Collection, seed: int) -> list[Finding]:
    """Check every trivial statistic; score: balanced accuracy of the surest stump.

    Args:
        data: the labelled training split.
        seed: decides the folds and the noise.

    Returns:
        One finding per statistic, or a single ``"separation"`` of score 0 that says why nothing
        could be checked.
    """
    statistics = _statistics(data)
    tried = sum(s.values.shape[1] for s in statistics.values())
    target = None if data.labels is None else make_target(data.labels, tried, seed)
    if target is None:
        needs = f"needs labels, a class of {MIN_SERIES} series and {MIN_SERIES} series outside it"
        return [Finding("separation", "ok", 0.0, f"not checked: {needs}")]
    stumps = {check: best_stump(s.values, target) for check, s in statistics.items()}
    suspects = {c: s for c, s in stumps.items() if s.low > 0.5 and s.score >= FAR_ABOVE_CHANCE}
    scale, hidden = _dither(data, target, suspects, statistics, seed)
    return [
        _judge(check, stump, check in suspects, statistics[check].kind, target, scale, hidden)
        for check, stump in stumps.items()
    ]


def _judge(
    check: str,
    stump: Stump,
    suspect: bool,
    kind: Kind,
    target: Target,
    scale: float,
    hidden: dict[str, float],
) -> Finding:
    """Turn a stump into a finding; ``hidden`` holds the scores left under noise of ``scale``."""
    side = "<=" if stump.below else ">"
    detail = (
        f"{check} {side} {stump.threshold:.6g} means class {target.labels[stump.class_index]} with "
        f"balanced accuracy {stump.score:.3f} [{stump.low:.3f}, {stump.high:.3f}]"
    )
    if suspect and kind == "digits" and check not in hidden:
        kind = "signal"
        detail += "; noise does not hide it: it is in the signal"
    nearly_perfect = stump.score >= NEARLY_PERFECT
    if not suspect or (kind == "signal" and not nearly_perfect):
        return Finding(check, "ok", stump.score, detail)
    if kind == "signal":
        return Finding(check, "warn", stump.score, detail, _SIGNAL_CURES.get(check, _COMPARE))
    cure = _CURES.get(check, "")
    if check in hidden:
        detail += f"; {hidden[check]:.3f} after noise of standard deviation {scale:g}"
        cure = f"Add normal noise of standard deviation {scale:g} to every series of every split."
    return Finding(check, "leak" if nearly_perfect else "warn", stump.score, detail, cure)


def _statistics(data: Collection) -> dict[str, _Statistic]:
    """Compute every statistic of every channel."""
    channels = [st.channel(data, c) for c in range(data.values.shape[1])]

    def per_channel(statistic: Callable[[st.Series], st.PerSeries]) -> Float64[np.ndarray, "n C"]:
        return np.stack([statistic(x) for x in channels], axis=1)

    result = {name: _Statistic("digits", per_channel(f)) for name, f in _DIGITS.items()}
    result |= {name: _Statistic("recording", per_channel(f)) for name, f in _LATTICE.items()}
    mean, deviation = (per_channel(f) for f in _MOMENTS.values())
    normalised = bool((abs(mean) < _NORMALISED).all() and (abs(deviation - 1) < _NORMALISED).all())
    for name, moment in zip(_MOMENTS, (mean, deviation), strict=True):
        result[name] = (
            _Statistic("recording", np.round(moment, _FLOAT32_DECIMALS))
            if normalised
            else _Statistic("signal", moment)
        )
    result |= {name: _Statistic("signal", per_channel(f)) for name, f in _VALUES.items()}
    result["missing_values"] = _Statistic("recording", st.missing_values(data)[:, None])
    result["length"] = _Statistic("signal", data.lengths.astype(np.float64)[:, None])
    result["file_order"] = _Statistic("signal", np.arange(len(data), dtype=np.float64)[:, None])
    return result


def _dither(
    data: Collection,
    target: Target,
    suspects: dict[str, Stump],
    statistics: dict[str, _Statistic],
    seed: int,
) -> tuple[float, dict[str, float]]:
    """Find the noise that hides the digitisation.

    Returns:
        The noise's standard deviation, one digit, and the score left under it for each suspect
        that it hides; (0, {}) if there is none.
    """
    deviations = [st.standard_deviation(st.channel(data, c)) for c in range(data.values.shape[1])]
    unit = float(np.median(deviations))

    def under_noise(check: str, scale: float) -> float:
        stump = suspects[check]
        x = _reread(st.channel(data, stump.channel), scale, seed)
        return same_stump((_DIGITS | _LATTICE)[check](x), target, stump).score

    needed = {}
    for check in suspects.keys() & _DIGITS if unit > 0 else ():
        left = [max(0.5, under_noise(check, level * unit)) for level in NOISE_LEVELS]
        excess = suspects[check].score - 0.5
        lowest = min(left)
        if lowest - 0.5 <= _REMAINDER * excess:
            enough = next(
                i for i, score in enumerate(left) if score - lowest <= _WORTHWHILE * excess
            )
            needed[check] = NOISE_LEVELS[enough] * unit
    for check in suspects.keys() & _LATTICE:
        step = _coarsest_step(check, suspects[check], target, statistics[check])
        if 0 < step <= NOISE_LEVELS[-1] * unit:
            needed[check] = step
    if not needed:
        return 0.0, {}
    scale = float(f"{_SAFETY * max(needed.values()):.1g}")
    return scale, {check: under_noise(check, scale) for check in needed}


def _reread(x: st.Series, scale: float, seed: int) -> st.Series:
    """Add noise and digitise every series alike, with a step of the noise's size.

    Without the new digitisation no value would ever repeat, and even noise too weak to hide the
    old lattice would seem to cure it.
    """
    noise = np.random.default_rng(seed).normal(0.0, scale, x.shape)
    return scale * np.round((x + noise) / scale)


def _coarsest_step(check: str, stump: Stump, target: Target, statistic: _Statistic) -> float:
    """Return the larger of the two typical steps, inside the class and outside it."""
    values = statistic.values[:, stump.channel]
    member = target.member[:, stump.class_index]
    typical = [float(np.median(values[side])) for side in (member, ~member)]
    return float(10.0 ** -min(typical)) if check == "written_digits" else max(typical)
