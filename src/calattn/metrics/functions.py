"""Metrics as functions of probabilities and labels: scores, calibration errors, selective prediction. Fractions in and out."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from calattn import checks
from calattn.metrics import ranks
from calattn.metrics.binning import BinSums, Norm
from calattn.metrics.classbins import ClassBins, Variant
from calattn.metrics.columns import Columns, LabelledValues, blocks_of, columns_of
from calattn.metrics.scoresums import HighConfidenceErrors, ScoreSums
from calattn.metrics.smooth import CELLS, SmoothGrid, relplot_automatic, relplot_smooth_error

Probs = Float[checks.ArrayLike, "n c"]
Labels = Integer[checks.ArrayLike, " n"]
Target = int | Literal["top"]
Binning = Literal["width", "count"]


def accuracy(probs: Probs, labels: Labels) -> float:
    """Share of samples whose largest probability is the label's; of equal probabilities the first class counts.

    >>> accuracy(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 0]))
    0.5
    """
    return float(_event(probs, labels, "top").correct.double().mean())


def nll(logits: Float[checks.ArrayLike, "n c"], labels: Labels) -> float:
    """Mean negative log-likelihood in nats: logsumexp(ℓ) − ℓ_y. Takes logits; `log p` of probabilities works too.

    Never clipped: a label of probability zero (logit −inf) gives ∞.

    >>> round(nll(torch.tensor([[0.0, 0.0]]), torch.tensor([1])), 4)
    0.6931
    """
    return float(columns_of(LabelledValues.of(logits, labels, "logits"), wanted=frozenset({"nll"})).nll.mean())


def brier(probs: Probs, labels: Labels) -> float:
    """Brier score: mean of Σ_k (p_k − [y = k])², from 0 to 2, for two classes too.

    >>> round(brier(torch.tensor([[0.75, 0.25]]), torch.tensor([0])), 4)
    0.125
    """
    return float(columns_of(LabelledValues.of(probs, labels, "probs"), wanted=frozenset({"brier"})).brier.mean())


class BrierDecomposition(NamedTuple):
    """brier = reliability − resolution + uncertainty + within_bin, exactly."""

    reliability: float  # squared gaps between mean probability and frequency, over class bins
    resolution: float  # how far bin frequencies spread around the class frequency
    uncertainty: float  # Σ_k f_k (1 − f_k): the score of always saying the class frequencies
    within_bin: float  # what bins of finite width leave over; → 0 as bins get finer


def brier_decomposition(probs: Probs, labels: Labels, *, num_bins: int = 15) -> BrierDecomposition:
    """Murphy's decomposition summed over classes, each with equal-width bins of its own probability.

    >>> parts = brier_decomposition(torch.tensor([[0.75, 0.25], [0.75, 0.25]]), torch.tensor([0, 1]))
    >>> [round(part, 4) for part in parts]
    [0.125, 0.0, 0.5, 0.0]
    """
    sums = class_bins(probs, labels, num_bins=num_bins)
    size = sums.count.clamp_min(1)
    weight = sums.count / sums.num_samples
    frequency = sums.correct / size
    base = (sums.correct.sum(dim=1) / sums.num_samples).unsqueeze(1)
    reliability = float((weight * (sums.confidence / size - frequency).square()).sum())
    resolution = float((weight * (frequency - base).square()).sum())
    uncertainty = float((base * (1 - base)).sum())
    return BrierDecomposition(
        reliability, resolution, uncertainty, brier(probs, labels) - (reliability - resolution + uncertainty)
    )


def ece(probs: Probs, labels: Labels, *, num_bins: int = 15, norm: Norm = "l1", target: Target = "top") -> float:
    """Expected calibration error: Σ_m |B_m|/N · |acc(B_m) − conf(B_m)| over equal-width bins (lo, hi].

    `target="top"` reads the confidence of the predicted class. `target=k` reads P(class k) against the event "the label
    is k": for two classes, `target=1` is the binary reading of P(y = 1). `norm="l2"` is the root mean square gap.

    >>> p = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]])
    >>> round(ece(p, torch.tensor([0, 1, 1, 1])), 4)
    0.4
    """
    return _bins(_event(probs, labels, target), num_bins, "width").error(norm)


def mce(probs: Probs, labels: Labels, *, num_bins: int = 15, target: Target = "top") -> float:
    """Maximum calibration error: max over non-empty equal-width bins of |acc − conf|.

    >>> round(mce(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 0])), 4)
    0.6
    """
    return _bins(_event(probs, labels, target), num_bins, "width").error("max")


def adaptive_ece(
    probs: Probs, labels: Labels, *, num_bins: int = 15, norm: Norm = "l1", target: Target = "top"
) -> float:
    """ECE over equal-count bins of the sorted confidences, boundaries at ⌊kN/m⌋; tied confidences share a boundary.

    >>> round(adaptive_ece(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 0]), num_bins=2), 4)
    0.35
    """
    return _bins(_event(probs, labels, target), num_bins, "count").error(norm)


def classwise_ece(probs: Probs, labels: Labels, *, num_bins: int = 15, variant: Variant = "one_vs_rest") -> float:
    """Mean over classes of the ECE of P(class) over all N samples (the paper's appendix; Kull et al. 2019).

    A class that never occurs still counts: its probabilities should be near zero. `variant="predicted_class"` is
    the authors' script instead: per class, the top-label ECE of the samples predicted as that class, averaged over
    the classes that are predicted at all.

    >>> round(classwise_ece(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 0])), 4)
    0.35
    """
    checks.positive_int(num_bins, "num_bins")
    if variant == "one_vs_rest":
        return class_bins(probs, labels, num_bins=num_bins).error()
    if variant != "predicted_class":
        raise ValueError(f'variant must be "one_vs_rest" or "predicted_class", got {variant!r}')
    predicted: list[Tensor] = []
    given = LabelledValues.of(probs, labels, "probs")
    columns = columns_of(given, visit=lambda block: predicted.append(block.top), wanted=frozenset())
    top = torch.cat(predicted)
    errors = []
    for cls in top.unique():
        errors.append(BinSums.empty(num_bins).add(columns.select(top == cls)).error())
    return sum(errors) / len(errors)


def class_bins(probs: Probs, labels: Labels, *, num_bins: int = 15) -> ClassBins:
    """The sums behind classwise ECE, for a per-class table: `class_bins(…).per_class()`."""
    given = LabelledValues.of(probs, labels, "probs")
    sums = ClassBins.empty(given.values.shape[1], checks.positive_int(num_bins, "num_bins"))
    collector = sums.collector()
    columns_of(given, visit=collector, wanted=frozenset())
    collector.finish()
    return sums


def debiased_ece(
    probs: Probs,
    labels: Labels,
    *,
    num_bins: int = 15,
    norm: Norm = "l1",
    binning: Binning = "width",
    target: Target = "top",
) -> float:
    """ECE less a part of its small-sample bias, by which plain ECE of a perfectly calibrated model is positive.

    `norm="l2"` is the estimator of Kumar et al. 2019, whose square is unbiased before it is clipped at 0. `norm="l1"` subtracts
    the bias that a folded Gaussian has at the observed gaps, and may be slightly negative. Observed gaps are wider than
    true ones, so about 40 % of the bias goes for a calibrated model, and nearly all of it where gaps are large.

    >>> p = torch.tensor([[0.6, 0.4]] * 10)
    >>> round(ece(p, torch.tensor([0] * 5 + [1] * 5)), 4), round(debiased_ece(p, torch.tensor([0] * 5 + [1] * 5)), 4)
    (0.1, 0.0494)
    """
    return _bins(_event(probs, labels, target), num_bins, binning).debiased_error(norm)


def ece_sweep(probs: Probs, labels: Labels, *, max_bins: int | None = None, target: Target = "top") -> float:
    """ECE with as many equal-count bins as keep the bin accuracies rising (Roelofs et al. 2022).

    The count grows from 2 and stops before the first count whose accuracies fall somewhere; one bin if 2 already do.

    >>> round(ece_sweep(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 0])), 4)
    0.35
    """
    columns = _event(probs, labels, target)
    groups = _groups(columns)
    limit = len(columns) if max_bins is None else min(checks.positive_int(max_bins, "max_bins"), len(columns))
    best = ranks.equal_count_bins(groups, 1)
    for num_bins in range(2, limit + 1):
        sums = ranks.equal_count_bins(groups, num_bins)
        if bool((sums.accuracy.diff() < -1e-12).any()):
            break
        best = sums
    return best.error()


class SmoothECE(NamedTuple):
    value: float
    bandwidth: float


def smooth_ece(
    probs: Probs,
    labels: Labels,
    *,
    bandwidth: float | None = 0.05,
    variant: Literal["exact", "relplot"] = "exact",
    target: Target = "top",
) -> float:
    """Smooth ECE of Błasiok & Nakkiran 2023: ∫ |Σ (p − y) K_σ(t, p)| dt / N with the reflected Gaussian kernel.

    `bandwidth=None` takes the σ at which smECE_σ = σ (`smooth_ece_automatic` also returns it). `variant="relplot"`
    gives the number of relplot 1.0.3, which counts mass within 0.001 of 0 and 1 too little (docs/metrics.md).

    >>> p = torch.tensor([[1.0, 0.0]] * 4)
    >>> round(smooth_ece(p, torch.tensor([0, 0, 0, 1])), 4)
    0.25
    """
    if bandwidth is None:
        return smooth_ece_automatic(probs, labels, variant=variant, target=target).value
    checks.positive(bandwidth, "bandwidth")
    columns = _event(probs, labels, target)
    if _is_relplots(variant):
        return relplot_smooth_error(columns, bandwidth)
    return _grid(columns, bandwidth).smooth_error(bandwidth)


def smooth_ece_automatic(
    probs: Probs, labels: Labels, *, variant: Literal["exact", "relplot"] = "exact", target: Target = "top"
) -> SmoothECE:
    """Smooth ECE at its own bandwidth, with that bandwidth."""
    columns = _event(probs, labels, target)
    found = relplot_automatic(columns) if _is_relplots(variant) else SmoothGrid.empty().add(columns).automatic()
    return SmoothECE(*found)


def kernel_ece(probs: Probs, labels: Labels, *, bandwidth: float = 0.05, target: Target = "top") -> float:
    """The formula the paper prints as smECE: mean |acc(p_i) − p_i|, acc a Nadaraya–Watson average with a Gaussian.

    The paper's tables were made with relplot, which is another quantity: see `smooth_ece`.

    >>> round(kernel_ece(torch.tensor([[0.9, 0.1], [0.9, 0.1]]), torch.tensor([0, 1])), 4)
    0.4
    """
    checks.positive(bandwidth, "bandwidth")
    return _grid(_event(probs, labels, target), bandwidth).kernel_error(bandwidth)


def misclassification_auroc(probs: Probs, labels: Labels) -> float:
    """P(a right prediction is more confident than a wrong one), ties counting half; NaN if all are right or all wrong.

    Ranked by p, and where it is rounded to 1 by Σ_{k≠top} p_k.

    >>> misclassification_auroc(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
    1.0
    """
    return ranks.auroc_of(_groups(_event(probs, labels, "top")))


def risk_coverage(probs: Probs, labels: Labels) -> tuple[Float[Tensor, " g"], Float[Tensor, " g"]]:
    """(coverage, risk): the error rate when only the most confident share of the samples is answered.

    >>> coverage, risk = risk_coverage(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
    >>> coverage.tolist(), risk.tolist()
    ([0.5, 1.0], [0.0, 0.5])
    """
    return ranks.risk_coverage_of(_groups(_event(probs, labels, "top")))


def aurc(probs: Probs, labels: Labels) -> float:
    """Area under the risk–coverage curve: the mean over samples of the risk at that sample's coverage.

    >>> aurc(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
    0.25
    """
    return ranks.aurc_of(_groups(_event(probs, labels, "top")))


def high_confidence_errors(probs: Probs, labels: Labels, *, threshold: float = 0.9) -> HighConfidenceErrors:
    """Errors made with confidence ≥ threshold, in the three readings of the paper's "HCFP@0.90".

    >>> p = torch.tensor([[0.95, 0.05], [0.95, 0.05], [0.6, 0.4]])
    >>> [round(v, 3) for v in high_confidence_errors(p, torch.tensor([0, 1, 1]))]
    [0.5, 0.5, 0.95]
    """
    checks.in_unit_interval(threshold, "threshold")
    values = ScoreSums(threshold).add(_event(probs, labels, "top")).read()
    return HighConfidenceErrors(*(values[f"high_confidence_{part}"] for part in HighConfidenceErrors._fields))


def ood_auroc(in_probs: Probs, out_probs: Probs) -> float:
    """P(an out-of-distribution sample has the larger 1 − max p), ties counting half.

    One convention: the score is 1 − max p, out-of-distribution is the positive class, 1 is best and 0.5 is chance. Where p is
    rounded to 1, the sum of the other entries decides.

    >>> ood_auroc(torch.tensor([[0.9, 0.1]]), torch.tensor([[0.6, 0.4]]))
    1.0
    """

    def odds(probs: Probs, name: str) -> Tensor:
        values = checks.matrix(probs, name)
        blocks = blocks_of(LabelledValues(values, values.new_zeros(len(values)).long(), "probs"), name)
        return torch.cat([block.columns(wanted=frozenset()).odds for block in blocks])

    return ranks.two_sample_auroc(odds(in_probs, "in_probs"), odds(out_probs, "out_probs"))


def _event(probs: Probs, labels: Labels, target: Target) -> Columns:
    """What calibration errors need, without the scores."""
    if target != "top" and not isinstance(target, int):
        raise ValueError(f'target must be "top" or a class index, got {target!r}')
    given = LabelledValues.of(probs, labels, "probs")
    return columns_of(given, target=None if target == "top" else target, wanted=frozenset())


def _bins(columns: Columns, num_bins: int, binning: Binning) -> BinSums:
    checks.positive_int(num_bins, "num_bins")
    if binning == "width":
        return BinSums.empty(num_bins).add(columns)
    if binning == "count":
        return ranks.equal_count_bins(_groups(columns), num_bins)
    raise ValueError(f'binning must be "width" or "count", got {binning!r}')


def _groups(columns: Columns) -> ranks.Groups:
    """The samples in order of confidence, exactly, however many there are."""
    return ranks.RankSums(capacity=len(columns)).add(columns).groups()


def _grid(columns: Columns, bandwidth: float) -> SmoothGrid:
    """A grid fine enough for the bandwidth; the default one serves down to 0.001."""
    cells = CELLS
    while SmoothGrid.min_bandwidth_of(cells) > bandwidth:
        cells *= 2
    if cells > 1 << 22:
        raise ValueError(f"bandwidth {bandwidth} is below 1e-6: no data set resolves that")
    return SmoothGrid.empty(cells).add(columns)


def _is_relplots(variant: str) -> bool:
    if variant not in ("exact", "relplot"):
        raise ValueError(f'variant must be "exact" or "relplot", got {variant!r}')
    return variant == "relplot"
