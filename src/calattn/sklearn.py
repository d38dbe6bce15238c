"""Our calibrators behind scikit-learn's classifiers: what `CalibratedClassifierCV` does, with every method of `posthoc`."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import check_cv, cross_val_predict
from sklearn.utils import get_tags, indexable
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from calattn.posthoc import CALIBRATORS, Calibrator
from calattn.types import Predictions


class CalibratedClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):
    """A classifier whose probabilities are calibrated on predictions of samples that it was not trained on.

    `fit` predicts each sample by cross-validation, fits the calibrator on these predictions, and the estimator on all samples:
    `CalibratedClassifierCV(ensemble=False)`. `cv="prefit"` takes an estimator that is fitted, and calibrates it on samples that
    it has not seen. `method` is a name (`calattn list calibrators`) or a `Calibrator`; those that read features of a network do
    not apply. Scores are those of `decision_function`, else probabilities, not below `floor`.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = CalibratedClassifier(LogisticRegression(max_iter=1000), method="temperature").fit(X, y)
    >>> model.predict_proba(X).shape, round(model.calibrator_.temperature_, 1)
    ((150, 3), 0.3)
    """

    def __init__(
        self, estimator: Any = None, *, method: str | Calibrator = "temperature", cv: Any = 5, floor: float = 1e-6
    ) -> None:
        self.estimator, self.method, self.cv, self.floor = estimator, method, cv, floor

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the estimator (unless `cv="prefit"`) and the calibrator."""
        X, y = indexable(X, column_or_1d(y, warn=True))
        check_classification_targets(y)
        estimator = LogisticRegression() if self.estimator is None else self.estimator
        if self.cv == "prefit":
            check_is_fitted(estimator)
        self.estimator_ = estimator if self.cv == "prefit" else clone(estimator).fit(X, y)
        self.classes_ = np.asarray(self.estimator_.classes_)
        if len(self.classes_) < 2:
            raise ValueError(f"y has only one class ({self.classes_[0]!r}); a classifier needs two or more")
        scores = self._scores(X) if self.cv == "prefit" else self._out_of_fold(clone(estimator), X, y)
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        self.calibrator_ = self._calibrator().fit(self._predictions(scores, self._codes(y)))
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Calibrated probabilities, one column per class of `classes_`."""
        check_is_fitted(self)
        logits = self._predictions(self._scores(X)).logits
        return self.calibrator_.predict_proba(logits).numpy().astype(np.float64)

    def predict(self, X: Any) -> np.ndarray:
        """The class of the highest calibrated probability."""
        check_is_fitted(self)
        return self.classes_[self.predict_proba(X).argmax(axis=1)]

    def _method(self) -> str:
        return "decision_function" if hasattr(self.estimator_, "decision_function") else "predict_proba"

    def _scores(self, X: Any) -> np.ndarray:
        return getattr(self.estimator_, self._method())(X)

    def _out_of_fold(self, estimator: Any, X: Any, y: np.ndarray) -> np.ndarray:
        splits = check_cv(self.cv, y, classifier=True)
        return cross_val_predict(estimator, X, y, cv=splits, method=self._method())

    def _predictions(self, scores: np.ndarray, labels: np.ndarray | None = None) -> Predictions:
        scores = np.asarray(scores, dtype=np.float64)
        known: dict[str, Any] = {} if labels is None else {"labels": torch.from_numpy(labels)}
        if self._method() == "predict_proba":
            return Predictions.from_probs(torch.from_numpy(scores), floor=self.floor, **known)
        if scores.ndim == 1:
            scores = np.stack([np.zeros_like(scores), scores], axis=1)  # softmax of (0, z) is the sigmoid of z
        return Predictions(logits=torch.from_numpy(scores), **known)

    def _codes(self, y: Any) -> np.ndarray:
        """Labels as positions in `classes_`."""
        values = np.asarray(y).reshape(-1)
        order = np.argsort(self.classes_)
        place = order[np.searchsorted(self.classes_, values, sorter=order).clip(max=len(order) - 1)]
        if (unknown := self.classes_[place] != values).any():
            raise ValueError(f"y has the class {values[unknown][0]!r}, which the estimator does not know")
        return place.astype(np.int64)

    def _calibrator(self) -> Calibrator:
        return CALIBRATORS[self.method]() if isinstance(self.method, str) else clone(self.method, safe=False)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if self.estimator is not None:
            tags.input_tags.sparse = get_tags(self.estimator).input_tags.sparse
        return tags
