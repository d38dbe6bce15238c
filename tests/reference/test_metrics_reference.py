"""Our metrics against netcal, relplot, torchmetrics, uncertainty-calibration and scikit-learn.

Equal to 1e-6 where the definitions agree. Where they do not, a test pins both values and says why.
"""

from __future__ import annotations

import calibration as uncertainty_calibration
import numpy as np
import pytest
import relplot
import sklearn.metrics
import torch
import torchmetrics.classification as tm
from netcal.metrics import ACE, ECE, MCE

from calattn import Predictions, evaluate, metrics
from tests.samples import SETS, logits_and_labels, saturated

TOLERANCE = 1e-6


@pytest.fixture(params=SETS)
def case(request: pytest.FixtureRequest) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    logits, labels = logits_and_labels(request.param)
    return logits, logits.softmax(1), labels


def near(value: float) -> object:
    return pytest.approx(float(value), abs=TOLERANCE, rel=0)


def top(probs: torch.Tensor, labels: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    confidence, predicted = probs.max(1)
    return confidence.double().numpy(), (predicted == labels).double().numpy()


# --- definitions agree ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("norm", "ours"), [("l1", "l1"), ("l2", "l2"), ("max", "max")])
def test_torchmetrics_ece(case, norm, ours):
    _, probs, labels = case
    peer = tm.MulticlassCalibrationError(num_classes=probs.shape[1], n_bins=15, norm=norm)
    assert metrics.ece(probs, labels, norm=ours) == near(peer(probs, labels))


def test_netcal_ece_and_mce(case):
    _, probs, labels = case
    confidence, correct = top(probs, labels)
    # netcal's multi-class mode groups by predicted class for detection; its confidence mode is the plain definition
    assert metrics.ece(probs, labels) == near(ECE(15).measure(confidence, correct))
    assert metrics.mce(probs, labels) == near(MCE(15).measure(confidence, correct))


@pytest.mark.parametrize("num_bins", [1, 7, 15, 100])
def test_uncertainty_calibration_ece(case, num_bins):
    _, probs, labels = case
    peer = uncertainty_calibration.get_ece(probs.numpy(), labels.numpy(), num_bins=num_bins)
    assert metrics.ece(probs, labels, num_bins=num_bins) == near(peer)


def test_uncertainty_calibration_classwise(case):
    _, probs, labels = case
    peer = uncertainty_calibration.get_ece(probs.numpy(), labels.numpy(), num_bins=15, mode="marginal")
    assert metrics.classwise_ece(probs, labels) == near(peer)


def test_uncertainty_calibration_equal_mass(case):
    _, probs, labels = case  # every set's size is a multiple of 15
    peer = uncertainty_calibration.get_ece_em(probs.numpy(), labels.numpy(), num_bins=15)
    assert metrics.adaptive_ece(probs, labels) == near(peer)


@pytest.mark.parametrize(
    ("binning", "scheme"),
    [
        ("width", uncertainty_calibration.utils.get_equal_prob_bins),
        ("count", uncertainty_calibration.utils.get_equal_bins),
    ],
)
def test_uncertainty_calibration_debiased_l2(case, binning, scheme):
    _, probs, labels = case
    peer = uncertainty_calibration.lower_bound_scaling_top_ce(
        probs.numpy(), labels.numpy(), p=2, debias=True, num_bins=15, binning_scheme=scheme
    )
    assert metrics.debiased_ece(probs, labels, norm="l2", binning=binning) == near(peer)


def test_uncertainty_calibration_debiased_l1():
    """Theirs averages 1,000 random draws of the same folded normal that we integrate: equal up to their noise."""
    logits, labels = logits_and_labels("underconfident")
    probs = logits.softmax(1)
    np.random.seed(0)  # noqa: NPY002  the peer draws from numpy's global state
    peer = np.mean(
        [
            uncertainty_calibration.lower_bound_scaling_top_ce(probs.numpy(), labels.numpy(), p=1, debias=True)
            for _ in range(20)
        ]
    )
    ours = metrics.debiased_ece(probs, labels, norm="l1", binning="count")
    assert ours == pytest.approx(peer, abs=2e-4)
    assert ours < metrics.adaptive_ece(probs, labels)


def test_sklearn_scores(case):
    logits, probs, labels = case
    classes = list(range(probs.shape[1]))
    assert metrics.nll(logits, labels) == near(sklearn.metrics.log_loss(labels, probs, labels=classes))
    assert metrics.accuracy(probs, labels) == near(sklearn.metrics.accuracy_score(labels, probs.argmax(1)))
    one_hot = np.eye(len(classes))[labels]
    assert metrics.brier(probs, labels) == near(((probs.numpy() - one_hot) ** 2).sum(1).mean())
    if len(classes) > 2:  # of two, it halves
        assert metrics.brier(probs, labels) == near(sklearn.metrics.brier_score_loss(labels, probs, labels=classes))


def test_sklearn_auroc(case):
    _, probs, labels = case
    confidence, correct = top(probs, labels)
    peer = sklearn.metrics.roc_auc_score(correct, confidence)
    assert metrics.misclassification_auroc(probs, labels) == near(peer)


def test_sklearn_ood_auroc():
    inside = logits_and_labels("ten_classes")[0].softmax(1)
    outside = (logits_and_labels("ten_classes", seed=5)[0] / 2).softmax(1)
    truth = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
    score = 1 - torch.cat([inside, outside]).max(1).values.numpy()
    assert metrics.ood_auroc(inside, outside) == near(sklearn.metrics.roc_auc_score(truth, score))


@pytest.mark.parametrize("sigma", [0.01, 0.05, 0.2])
def test_relplot_number_on_request(case, sigma):
    _, probs, labels = case
    peer = relplot.smECE_sigma(*top(probs, labels), sigma=sigma)
    assert metrics.smooth_ece(probs, labels, bandwidth=sigma, variant="relplot") == near(peer)


def test_relplot_automatic_number_on_request(case):
    _, probs, labels = case
    value, bandwidth = relplot.smECE(*top(probs, labels), return_width=True)
    ours = metrics.smooth_ece_automatic(probs, labels, variant="relplot")
    assert ours.value == near(value)
    assert ours.bandwidth == near(bandwidth)


# --- smooth ECE against a brute-force reflected kernel ------------------------------------------------------------------


def brute_smooth_ece(confidence: np.ndarray, correct: np.ndarray, sigma: float, points: int = 4001) -> float:
    """∫ |mean (p − y) Σ_images φ(t − image of p)| dt by the trapezoid rule: every sample, every mirror image."""
    t = np.linspace(0, 1, points)
    total = np.zeros(points)
    for p, y in zip(confidence, correct, strict=True):
        for period in range(-2, 3):
            for image in (2 * period + p, 2 * period - p):
                total += (p - y) * np.exp(-((t - image) ** 2) / (2 * sigma**2))
    total /= len(confidence) * np.sqrt(2 * np.pi) * sigma
    return float(np.trapezoid(np.abs(total), t))


@pytest.mark.parametrize("sigma", [0.02, 0.05, 0.3])
def test_smooth_ece_is_exact(sigma):
    for probs, labels in (saturated(400), saturated(401, seed=3)):
        confidence, correct = top(probs, labels)
        expected = brute_smooth_ece(confidence, correct, sigma)
        assert metrics.smooth_ece(probs, labels, bandwidth=sigma) == pytest.approx(expected, abs=2e-7)


def test_smooth_ece_automatic_is_the_fixed_point():
    probs, labels = saturated(3000)
    value, bandwidth = metrics.smooth_ece_automatic(probs, labels)
    assert value == pytest.approx(bandwidth, abs=1e-7)
    assert metrics.smooth_ece(probs, labels, bandwidth=bandwidth) == pytest.approx(value, abs=1e-7)


@pytest.mark.parametrize(("bandwidth", "tolerance"), [(0.005, 1e-6), (0.02, 1e-9), (0.05, 1e-9)])
def test_kernel_ece_is_the_printed_formula(bandwidth, tolerance):
    probs, labels = saturated(500)
    p, y = top(probs, labels)
    kernel = np.exp(-((p[:, None] - p) ** 2) / (2 * bandwidth**2))
    expected = np.abs(kernel @ y / kernel.sum(1) - p).mean()
    assert metrics.kernel_ece(probs, labels, bandwidth=bandwidth) == pytest.approx(expected, abs=tolerance)


# --- known differences, pinned ------------------------------------------------------------------------------------------


def test_difference_phantom_bin():
    """torchmetrics puts confidence exactly 1.0 into a sixteenth bin of its own (torchmetrics #3510).

    0.95 is right always, so under-confident by 0.05; 1.0 is right nine times in ten, so over-confident by 0.1. In the one last
    bin that they share by definition these partly cancel: mean confidence 0.975, accuracy 0.95. In two bins they cannot.
    """
    confidence = torch.tensor([0.95] * 200 + [1.0] * 200, dtype=torch.float64)
    probs = torch.stack([confidence, 1 - confidence], 1)
    labels = torch.zeros(400, dtype=torch.int64)
    labels[200:220] = 1
    peer = float(tm.MulticlassCalibrationError(num_classes=2, n_bins=15)(probs, labels))
    assert peer == pytest.approx(0.5 * 0.05 + 0.5 * 0.1, abs=1e-5)
    assert metrics.ece(probs, labels) == pytest.approx(0.975 - 0.95, abs=1e-9)


@pytest.mark.parametrize(("high", "apart"), [(0.9, 0.0), (0.998, -0.02), (0.9995, 0.12), (0.9999, 0.27), (1.0, 0.32)])
def test_difference_smooth_ece_of_relplot_near_the_end(high, apart):
    """Half of all samples at `high`, and right; half at 0.7, of which half are right: ½ · 0.2 = 0.1.

    relplot's grid has steps of 1/1000: 0.9995 is shared by the points 0.999 and 1, and the share of the end point counts half;
    no exact 1 is needed. At 0.998 only the mean is left, which counts the ends of 200 points in full, and at 0.9 nothing.
    """
    confidence = torch.tensor([high, high, 0.7, 0.7], dtype=torch.float64).repeat(50)
    probs, labels = torch.stack([confidence, 1 - confidence], 1), torch.tensor([0, 0, 0, 1]).repeat(50)
    peer = relplot.smECE_sigma(*top(probs, labels), sigma=0.05)
    assert metrics.smooth_ece(probs, labels, variant="relplot") == near(peer)
    assert peer / metrics.smooth_ece(probs, labels) - 1 == pytest.approx(apart, abs=0.006)
    automatic = metrics.smooth_ece(probs, labels, bandwidth=None, variant="relplot")
    assert automatic == near(relplot.smECE(*top(probs, labels)))


def test_difference_classwise_variants():
    """One-vs-rest over all N·C probabilities against the authors' ECE of the samples predicted as each class."""
    logits, labels = logits_and_labels("many_classes")
    probs = logits.softmax(1)
    ours = metrics.classwise_ece(probs, labels)
    theirs = metrics.classwise_ece(probs, labels, variant="predicted_class")
    confidence, predicted = probs.max(1)
    errors = []
    for cls in predicted.unique():
        chosen = predicted == cls
        correct = (labels[chosen] == cls).double().numpy()
        errors.append(ECE(15).measure(confidence[chosen].numpy(), correct))
    assert theirs == near(np.mean(errors))
    assert theirs > 20 * ours


def test_difference_adaptive_remainder():
    """17 samples in 5 bins: np.array_split (uncertainty-calibration) makes the first bins larger, ⌊kN/m⌋ spreads them."""
    logits, labels = logits_and_labels("underconfident")
    probs, labels = logits[:17].softmax(1), labels[:17]
    peer = uncertainty_calibration.get_ece_em(probs.numpy(), labels.numpy(), num_bins=5)
    confidence, correct = top(probs, labels)
    order = np.argsort(confidence)

    def by(bounds: list[int]) -> float:
        pieces = np.split(order, bounds)
        return sum(abs(confidence[b].sum() - correct[b].sum()) for b in pieces) / 17

    assert peer == near(by([4, 8, 11, 14]))
    assert metrics.adaptive_ece(probs, labels, num_bins=5) == near(by([3, 6, 10, 13]))


def test_difference_netcal_ace():
    """netcal's ACE is an unweighted average over equal-width bins, not adaptive: another quantity under a near name."""
    logits, labels = logits_and_labels("ten_classes")
    probs = logits.softmax(1)
    confidence, correct = top(probs, labels)
    peer = ACE(15).measure(confidence, correct)
    index = np.ceil(confidence * 15).astype(int)
    gaps = [abs(confidence[index == b].mean() - correct[index == b].mean()) for b in np.unique(index)]
    assert peer == near(np.mean(gaps))
    assert abs(metrics.adaptive_ece(probs, labels) - peer) > 1e-3


def test_difference_binary_brier_of_sklearn():
    """scikit-learn halves the binary case; ours is the sum over both classes, as for any other number of classes."""
    logits, labels = logits_and_labels("binary")
    probs = logits.softmax(1)
    peer = sklearn.metrics.brier_score_loss(labels, probs[:, 1])
    assert metrics.brier(probs, labels) == near(2 * peer)


def test_difference_nll_clipping_of_sklearn():
    """scikit-learn clips probabilities at the float's eps; ours is the true value, ∞ included."""
    logits = torch.tensor([[0.0, 200.0]], dtype=torch.float64)
    labels = torch.tensor([0])
    peer = sklearn.metrics.log_loss([0], logits.softmax(1).numpy(), labels=[0, 1])
    assert peer < 37
    assert metrics.nll(logits, labels) == near(200.0)
    assert metrics.nll(torch.tensor([[-torch.inf, 0.0]]), labels) == torch.inf


def test_difference_float32_accumulation_of_torchmetrics():
    """A million float32 confidences: torchmetrics adds them up in float32 and drifts; float64 sums do not."""
    g = torch.Generator().manual_seed(0)
    confidence = 0.9 + 0.001 * torch.rand(1_000_000, generator=g)
    probs = torch.stack([confidence, 1 - confidence], 1)
    labels = (torch.rand(1_000_000, generator=g) > 0.9).long()
    exact = abs(float(confidence.double().mean()) - float((labels == 0).double().mean()))
    assert metrics.ece(probs, labels) == pytest.approx(exact, rel=1e-9)
    peer = float(tm.MulticlassCalibrationError(num_classes=2, n_bins=15)(probs, labels))
    assert abs(peer - exact) > 1e-6


def test_difference_binary_reading():
    """P(1) is 0.2 or 0.8 and happens 0.1 or 0.7: off by 0.1 everywhere, which the predicted class does not see.

    Predicted 0 is said with 0.8 and right 0.9, predicted 1 is said with 0.8 and right 0.7: together 0.8 and 0.8.
    """
    p = torch.tensor([0.2] * 100 + [0.8] * 100, dtype=torch.float64)
    labels = torch.tensor([1] * 10 + [0] * 90 + [1] * 70 + [0] * 30)
    predictions = Predictions.from_probs(torch.stack([1 - p, p], 1), labels)
    assert float(tm.BinaryCalibrationError(n_bins=10)(p, labels)) == pytest.approx(0.1, abs=1e-6)
    assert ECE(10).measure(p.numpy(), labels.numpy()) == near(0.1)
    event, top = (evaluate(predictions, metrics="ece", num_bins=10, target=t, num_bootstrap=0) for t in (1, None))
    assert event["ece"].value == near(0.1)
    assert top["ece"].value == near(0.0)
