"""The scikit-learn wrapper: scikit-learn's own checks, and its own calibrated classifier as the reference."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from calattn.posthoc import IsotonicCalibration, TemperatureScaling
from calattn.sklearn import CalibratedClassifier

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
CHECKED = [
    CalibratedClassifier(LogisticRegression(C=1), cv=3),
    CalibratedClassifier(GaussianNB(), method="isotonic", cv=3),
]


@parametrize_with_checks(CHECKED)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("load", [load_iris, load_wine, load_breast_cancer])
@pytest.mark.parametrize("estimator", [LogisticRegression(), LinearSVC(), GaussianNB()])
def test_temperature_is_that_of_scikit_learn(load, estimator):
    X, y = load(return_X_y=True)
    if isinstance(estimator, GaussianNB) and load is load_breast_cancer:
        pytest.skip("of two classes scikit-learn takes the probability itself for a logit")
    inner = make_pipeline(StandardScaler(), estimator)
    ours = CalibratedClassifier(inner, method="temperature", cv=5, floor=np.finfo(float).eps).fit(X, y)
    theirs = CalibratedClassifierCV(inner, method="temperature", cv=5, ensemble=False).fit(X, y)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=2e-3)
    assert (ours.predict(X) == theirs.predict(X)).all()


@pytest.mark.parametrize("method", ["vector", "histogram", "temperature_ece", IsotonicCalibration()])
def test_every_method_and_labels_that_are_names(method):
    data = load_iris()
    names = data.target_names[data.target]
    model = CalibratedClassifier(LogisticRegression(max_iter=1000), method=method).fit(data.data, names)
    probs = model.predict_proba(data.data)
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-6)
    assert model.score(data.data, names) > 0.9
    assert list(model.classes_) == sorted(data.target_names)


def test_an_estimator_that_is_fitted_is_only_calibrated():
    X, y = load_breast_cancer(return_X_y=True)
    forest = RandomForestClassifier(20, random_state=0).fit(X[::2], y[::2])  # with exact zeros
    model = CalibratedClassifier(forest, cv="prefit").fit(X[1::2], y[1::2])
    assert model.estimator_ is forest
    probs = np.clip(forest.predict_proba(X[1::2]), 1e-6, None)
    alone = TemperatureScaling().fit(np.log(probs), y[1::2])
    assert model.calibrator_.temperature_ == pytest.approx(alone.temperature_, rel=1e-4)
    with pytest.raises(ValueError, match=r"y has the class \S*7\S*, which the estimator does not know"):
        CalibratedClassifier(forest, cv="prefit").fit(X, np.where(y == 0, 7, y))


def test_no_warning_where_nothing_is_wrong():
    X, y = load_iris(return_X_y=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CalibratedClassifier(LogisticRegression(max_iter=1000)).fit(X, y).predict(X)
