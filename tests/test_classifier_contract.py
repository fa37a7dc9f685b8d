"""scikit-learn's own checks of an estimator, all of them."""

from collections.abc import Callable
from typing import Any

from sklearn.utils.estimator_checks import parametrize_with_checks

from lagformer import LagformerClassifier


# The checks train on tables whose columns are no time: a rotation would mix them up.
@parametrize_with_checks([LagformerClassifier(max_epochs=6, learning_rate=0.01, shift=False)])
def test_scikit_learn_contract(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)
