"""Two classes on the page: what is said of class 1, and that no temperature is advised against an offset."""

from __future__ import annotations

import pytest
import scipy.stats
import torch
from sklearn.linear_model import LogisticRegression

import calattn
from calattn.metrics.columns import LabelledValues, columns_of
from calattn.metrics.sources import columns_in
from calattn.report.page import Exhibit, build_document
from calattn.report.verdict import ClassOne, Gaps, p_of_bias, verdict, verdict_of


def binary(change, *, mean: float = -4.0, spread: float = 1.0, n: int = 20_000, seed: int = 0, **fields: object):
    """Predictions whose logit of class 1 is `change` of the true one."""
    generator = torch.Generator().manual_seed(seed)
    true = mean + spread * torch.randn(n, generator=generator, dtype=torch.float64)
    labels = (torch.rand(n, generator=generator, dtype=torch.float64) < true.sigmoid()).long()
    stated = change(true)
    return calattn.Predictions(logits=torch.stack([torch.zeros_like(stated), stated], 1), labels=labels, **fields)


def said_of(p: calattn.Predictions) -> dict[str, str]:
    return verdict(Gaps.of(columns_in(p)), event=ClassOne.of(p))


@pytest.mark.parametrize(("factor", "kind", "word"), [(2.0, "over", "lowers"), (0.5, "under", "raises")])
def test_a_wrong_temperature_of_a_rare_class_is_no_offset(factor, kind, word):
    """The mean of P(1) is far off here too, but a temperature is all that is wrong, and the cure."""
    p = binary(lambda true: factor * true)
    found = said_of(p)
    assert abs(float(p.probs[:, 1].mean() - p.labels.double().mean())) > 0.02
    assert found["kind"] == kind
    assert word in found["detail"]
    assert "cannot fix" not in found["detail"]
    assert "P(1) averages" in found["detail"]


def test_a_small_offset_beside_a_wrong_temperature_is_said_as_well():
    found = said_of(binary(lambda true: 3 * true + 0.7, mean=0.0, spread=2.0))
    assert found["kind"] == "over"
    assert "lowers the confidence" in found["detail"]
    assert "A temperature cannot fix an offset" in found["detail"]


def test_an_offset_of_equally_frequent_classes_is_not_called_calibrated():
    found = said_of(binary(lambda true: true + 0.7, mean=0.0, spread=2.0))
    assert (found["kind"], found["headline"][:16]) == ("offset", "P(1) is much too")


def test_calibrated_predictions_stay_calibrated():
    kinds = [said_of(binary(lambda true: true, seed=seed, n=4000))["kind"] for seed in range(40)]
    assert kinds.count("offset") <= 1
    assert kinds.count("calibrated") >= 34


def test_the_score_test_is_the_likelihood_ratio_test_of_scikit_learns_fits():
    """Asymptotically the same: logistic regressions on the logit with and without an intercept."""
    p = binary(lambda true: 1.5 * true + 0.1, mean=-1.0, n=8000)
    logit, labels = (p.logits[:, 1:]).numpy(), p.labels.numpy()

    def log_likelihood(*, bias: bool) -> float:
        fit = LogisticRegression(C=1e12, fit_intercept=bias, tol=1e-10).fit(logit, labels)
        probs = torch.from_numpy(fit.predict_proba(logit))
        return float(probs.gather(1, p.labels.unsqueeze(1)).log().sum())

    ratio = 2 * (log_likelihood(bias=True) - log_likelihood(bias=False))
    found = p_of_bias(columns_in(p, 1))
    assert found == pytest.approx(scipy.stats.chi2.sf(ratio, 1), rel=0.1)


def test_the_score_test_holds_its_level():
    values = [p_of_bias(columns_in(p, 1)) for p in map(_scaled, range(200))]
    assert scipy.stats.kstest(values, "uniform").pvalue > 0.01


def _scaled(seed: int) -> calattn.Predictions:
    return binary(lambda true: 2 * true, mean=-2.0, n=2000, seed=seed)


@pytest.mark.parametrize("labels", [[0] * 50, [1] * 50])
def test_one_class_alone_is_no_ground_for_an_offset_test(labels):
    logits = torch.tensor([[2.0, 0.0]] * 25 + [[-1.0, 0.0]] * 25)
    assert 0 <= p_of_bias(columns_of(LabelledValues(logits, torch.tensor(labels), "logits"), target=1)) <= 1


def test_the_page_says_it_by_the_name_of_the_class():
    def document_of(p: calattn.Predictions) -> dict:
        return build_document([Exhibit(title="p", predictions=p, evaluation=calattn.evaluate(p, num_bootstrap=0))])

    named = binary(lambda true: true + 1.2, n=4000, class_names=("fair", "fraud"))
    assert document_of(named)["subjects"][0]["verdict"]["headline"].startswith("P(fraud) is much too high: averages ")
    stated = calattn.Predictions.from_probs(named.probs, named.labels)
    assert document_of(stated)["subjects"][0]["verdict"]["kind"] == "offset"
    slider = document_of(named)["subjects"][0]["temperature"]
    for place in (0, len(slider["grid"]) // 2, -1):
        scaled = verdict_of(named.replace(logits=named.logits / slider["grid"][place]))
        assert slider["verdicts"][place]["headline"] == scaled["headline"]
    at_best = slider["verdicts"][slider["grid"].index(slider["best"]["value"])]
    assert at_best["kind"] == "offset"
    assert "too high: averages" in at_best["headline"], "not of the confidence, which T* mends"
    three = calattn.Predictions(logits=torch.randn(300, 3), labels=torch.randint(3, (300,)))
    assert "averages" not in document_of(three)["subjects"][0]["verdict"]["detail"]
