"""Prediction sets: against MAPIE and by hand, and their coverage by simulation."""

import functools
import math

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, ClassifierMixin

from calattn import Predictions
from calattn.posthoc import FitWarning, PredictionSets, SameDataWarning, TemperatureScaling, contest, load, sets_after

SCORES = ("raps", "aps", "lac")


@functools.cache
def drawn(n: int, seed: int, c: int = 6, temperature: float = 1.0) -> Predictions:
    """The harder half is group 1 of `halves`."""
    g = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, c, generator=g)
    logits[halves(n) == 1] /= 4
    labels = torch.multinomial((logits / temperature).softmax(dim=1), 1, generator=g).squeeze(1)
    return Predictions(logits=logits, labels=labels)


def halves(n: int) -> torch.Tensor:
    return torch.arange(n) % 2


def by_hand(sets: PredictionSets, probs: list[float], u: float) -> list[float]:
    order = sorted(range(len(probs)), key=lambda k: -probs[k])
    found = [0.0] * len(probs)
    for place, k in enumerate(order, start=1):
        before = sum(probs[j] for j in order[: place - 1])
        found[k] = before + u * probs[k] + (sets.penalty * max(0, place - sets.free) if sets.score == "raps" else 0.0)
    return [1 - p for p in probs] if sets.score == "lac" else found


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("randomised", [True, False])
def test_scores_and_thresholds_by_hand(score, randomised):
    p, new = drawn(40, 0), drawn(30, 1)
    sets = PredictionSets(0.8, score=score, randomised=randomised, penalty=0.1, free=2).fit(p)

    def uniform(n, seed):
        drawn_u = torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).tolist()
        return drawn_u if randomised else [1.0] * n

    rows = zip(p.probs.double().tolist(), p.labels.tolist(), uniform(40, 1), strict=True)
    own = sorted(by_hand(sets, probs, u)[label] for probs, label, u in rows)
    threshold = own[math.ceil(41 * 0.8) - 1]
    assert float(sets.thresholds_) == pytest.approx(threshold)
    rows = zip(new.probs.double().tolist(), uniform(30, 0), strict=True)
    want = [[each <= threshold + 1e-12 for each in by_hand(sets, probs, u)] for probs, u in rows]
    assert sets(new).tolist() == want


class Given(ClassifierMixin, BaseEstimator):
    """A classifier whose inputs are its probabilities."""

    def fit(self, X, y):  # noqa: ARG002
        self.classes_ = np.arange(X.shape[1])
        return self

    def predict_proba(self, X):
        return X

    def predict(self, X):
        return X.argmax(axis=1)


@pytest.mark.parametrize("coverage", [0.8, 0.95])
def test_sets_and_scores_are_those_of_mapie(coverage):
    """Of LAC the sets; of APS the scores, because MAPIE draws u for the threshold and not for the new sample."""
    from mapie.classification import SplitConformalClassifier
    from mapie.conformity_scores.sets import APSConformityScore

    p, new = drawn(300, 0), drawn(200, 1)
    x, y = p.probs.double().numpy(), p.labels.numpy()
    model = SplitConformalClassifier(Given().fit(x, y), confidence_level=coverage, conformity_score="lac", prefit=True)
    _, theirs = model.conformalize(x, y).predict_set(new.probs.double().numpy())
    ours = PredictionSets(coverage, score="lac").fit(p)(new)
    assert torch.equal(ours, torch.from_numpy(theirs[:, :, 0]))
    assert 0 < ours.double().mean() < 1
    own, _ = APSConformityScore.get_true_label_cumsum_proba(y, x, np.arange(6))
    sets = PredictionSets(coverage, score="aps", randomised=False).fit(p)
    assert float(sets.thresholds_) == pytest.approx(float(np.sort(own.ravel())[math.ceil(301 * coverage) - 1]))


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("coverage", [0.8, 0.95])
@pytest.mark.parametrize("per", ["all", "class", "group"])
def test_coverage_by_simulation(score, coverage, per):
    """Of a badly calibrated model with offsets: on average between the level and 1/(n + 1) more, where scores do not tie.

    Each class and each group on its own where that was asked for.
    """
    trials, offsets, groups = 200, torch.tensor([2.0, 0, 0, 0, 0, -1.0]), halves(600)
    fitted, inside = torch.zeros(2, 6).double()
    judged = torch.zeros(6).double()
    for trial in range(trials):
        p = drawn(600, trial, temperature=3.0)
        p = p.replace(logits=p.logits + offsets)
        own, new = (p.select(torch.arange(*ends)) for ends in ((0, 400), (400, 600)))
        sets = PredictionSets(coverage, score=score, per=per, seed=trial).fit(own, groups=groups[:400])
        held = sets(new, groups=groups[400:]).gather(1, new.labels[:, None]).squeeze(1)
        part = {"all": 0 * p.labels, "class": p.labels, "group": groups}[per]
        fitted += part[:400].bincount(minlength=6)
        judged += part[400:].bincount(minlength=6)
        inside += part[400:][held].bincount(minlength=6)
    for n, m, k in zip(fitted.tolist(), judged.tolist(), inside.tolist(), strict=True):
        # The threshold's own spread adds to that of the judged samples.
        error = math.sqrt(coverage * (1 - coverage) * (1 / m + 1 / n)) if m else 0.0
        assert m == 0 or coverage - 3.5 * error < k / m < coverage + trials / n + 3.5 * error


@pytest.mark.parametrize("score", SCORES)
def test_one_threshold_does_not_serve_each_group_and_class(score):
    p, new = (drawn(20_000, seed, temperature=2.0) for seed in (0, 1))
    one = PredictionSets(0.9, score=score).fit(p).judge(new, groups=halves(20_000))
    assert abs(one.by_group["0"].value - one.by_group["1"].value) > 0.01
    p, new = (each.replace(logits=each.logits + torch.tensor([3.0, 0, 0, 0, 0, 0])) for each in (p, new))
    one = PredictionSets(0.9, score=score).fit(p).judge(new)
    assert one.by_class[one.worst_class].value < 0.88


def test_intervals():
    """Of coverage, that of scipy; of the mean size, 1.96 standard errors."""
    from scipy.stats import binomtest

    sets, p = PredictionSets().fit(drawn(500, 0)), drawn(400, 1)
    report, mask = sets.judge(p), sets(p)
    inside = int(mask.gather(1, p.labels[:, None]).sum())
    low, high = binomtest(inside, 400).proportion_ci(method="exact")
    assert report.coverage == pytest.approx((inside / 400, low, high))
    sizes = mask.sum(dim=1).double()
    assert report.size.value == pytest.approx(float(sizes.mean()))
    assert report.size.high - report.size.value == pytest.approx(1.96 * float(sizes.std()) / 20)
    assert report.empty == float((sizes == 0).double().mean())


def test_a_file_gives_the_same_sets(tmp_path):
    p, new = drawn(300, 0), drawn(50, 1)
    sets = PredictionSets(0.8, per="group").fit(p, groups=["ab"[k] for k in halves(300)])
    sets.save(tmp_path / "sets")
    again = PredictionSets.load(tmp_path / "sets")
    named = ["ab"[k] for k in halves(50)]
    assert torch.equal(again(new, groups=named), sets(new, groups=named))
    assert again.options() == sets.options()
    with pytest.raises(
        ValueError, match=r"holds PredictionSets, which is no calibrator; read it with .*PredictionSets\.load"
    ):
        load(tmp_path / "sets")
    with pytest.raises(ValueError, match="'c' was not among the groups that sets were fitted on"):
        again(new, groups=["c"] * 50)
    with pytest.raises(ValueError, match="has 3 entries for 50 samples"):
        again(new, groups=["a"] * 3)
    with pytest.raises(ValueError, match="groups are needed"):
        again(new)


@pytest.mark.usefixtures("untyped")
def test_too_few_samples_and_the_same_samples_are_told():
    p = drawn(8, 0)
    with pytest.warns(FitWarning, match="have fewer than 9 samples, too few for a coverage of 0.9"):
        sets = PredictionSets(0.9).fit(p)
    assert sets(drawn(5, 1)).all()
    with pytest.warns(SameDataWarning):
        sets(p)
    for options, message in (
        ({"coverage": 1.0}, "between 0 and 1"),
        ({"score": "top"}, "score"),
        ({"free": -1}, "free"),
    ):
        with pytest.raises(ValueError, match=message):
            PredictionSets(**options)


@pytest.mark.parametrize("given", [True, False])
def test_after_a_contest_nothing_is_judged_on_what_was_fitted(given):
    """Offsets for 40 classes, fitted on 400 samples, are far too sure of these: sets of these would cover too little."""
    judge, validation = drawn(4000, 0, c=40), drawn(400, 1, c=40)
    found = contest(judge, validation if given else None, methods="structured_vector", num_bootstrap=0)
    sets = PredictionSets(0.9)
    (report,) = sets_after(found.rows[0], validation if given else None, [sets])
    assert abs(report.coverage.value - 0.9) < 0.03
    assert sets.num_samples_ == (400 if given else 4000)


def test_a_sharper_temperature_does_not_change_lac_of_two_classes():
    """One temperature keeps the order of all samples there, so sets are the same."""
    p, new = drawn(300, 0, c=2), drawn(200, 1, c=2)
    scaled = TemperatureScaling().fit(drawn(300, 5, c=2, temperature=2.0))
    sets = [PredictionSets(0.9, score="lac").fit(f(p))(f(new)) for f in (lambda q: q, scaled)]
    assert torch.equal(*sets)
