"""Whether confidence tells right from wrong, and known from foreign."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from calattn import checks
from calattn.metrics import ranks
from calattn.metrics.calibration import Labels, Probs
from calattn.metrics.columns import columns_of
from calattn.metrics.scoresums import HighConfidenceErrors, ScoreSums


def _groups(probs: Probs, labels: Labels) -> ranks.Groups:
    columns = columns_of(probs, labels, "probs")
    return ranks.RankSums(capacity=len(columns)).add(columns).groups()


def misclassification_auroc(probs: Probs, labels: Labels) -> float:
    """P(a right prediction is more confident than a wrong one), ties counting half; NaN if all are right or all wrong.

    Ranked by the odds Σ_{k≠top} p_k / p_top, which still differ where confidences round to 1.

    >>> import torch
    >>> misclassification_auroc(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
    1.0
    """
    return ranks.auroc_of(_groups(probs, labels))


def risk_coverage(probs: Probs, labels: Labels) -> tuple[Float[Tensor, " g"], Float[Tensor, " g"]]:
    """(coverage, risk): the error rate when only the most confident share of the samples is answered.

    >>> import torch
    >>> coverage, risk = risk_coverage(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
    >>> coverage.tolist(), risk.tolist()
    ([0.5, 1.0], [0.0, 0.5])
    """
    return ranks.risk_coverage_of(_groups(probs, labels))


def aurc(probs: Probs, labels: Labels) -> float:
    """Area under the risk–coverage curve: the mean over samples of the risk at that sample's coverage.

    >>> import torch
    >>> aurc(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
    0.25
    """
    return ranks.aurc_of(_groups(probs, labels))


def high_confidence_errors(probs: Probs, labels: Labels, *, threshold: float = 0.9) -> HighConfidenceErrors:
    """Errors made with confidence ≥ threshold, in the three readings of the paper's "HCFP@0.90".

    >>> import torch
    >>> p = torch.tensor([[0.95, 0.05], [0.95, 0.05], [0.6, 0.4]])
    >>> [round(v, 3) for v in high_confidence_errors(p, torch.tensor([0, 1, 1]))]
    [0.5, 0.5, 0.95]
    """
    checks.in_unit_interval(threshold, "threshold")
    values = ScoreSums(threshold).add(columns_of(probs, labels, "probs")).read()
    return HighConfidenceErrors(
        values["high_confidence_error_rate"],
        values["high_confidence_error_share"],
        values["high_confidence_error_confidence"],
    )


def ood_auroc(in_probs: Probs, out_probs: Probs) -> float:
    """P(an out-of-distribution sample has the larger 1 − max p), ties counting half.

    One convention: the score is 1 − max p, out-of-distribution is the positive class, 1 is best and 0.5 is chance.

    >>> import torch
    >>> ood_auroc(torch.tensor([[0.9, 0.1]]), torch.tensor([[0.6, 0.4]]))
    1.0
    """

    def odds(probs: Probs, name: str) -> Tensor:
        values = checks.matrix(probs, name)
        return columns_of(values, values.new_zeros(len(values)).long(), "probs", name=name).odds

    return ranks.two_sample_auroc(odds(in_probs, "in_probs"), odds(out_probs, "out_probs"))
