"""Training losses: calibrated logits and labels in, one number out, so that each goes with every head."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from calattn.losses._inputs import check_labels
from calattn.losses.brier_score import brier
from calattn.losses.cross_entropy import ce
from calattn.losses.dual_focal_loss import dual_focal
from calattn.losses.flsd import flsd53
from calattn.losses.focal_loss import focal
from calattn.losses.joint import ce_brier
from calattn.losses.kernel_mean import mmce
from calattn.losses.loss import Loss
from calattn.losses.margin import mbls
from calattn.losses.own import LossError, OwnLoss, check_loss
from calattn.losses.smoothing import label_smoothing
from calattn.registry import Registry

LossFunction = Callable[[Tensor, Tensor], Tensor]

# name → factory: keyword options in, a (logits, labels) → loss callable out.
LOSSES: Registry[Callable[..., LossFunction]] = Registry("loss")
for _function in (ce, brier, ce_brier, mmce, label_smoothing, focal, flsd53, dual_focal, mbls):
    LOSSES.add(_function.__name__, partial(Loss, _function))


def create(name: str, **options: object) -> LossFunction:
    """The registered loss of that name, its options checked and fixed.

    >>> create("mbls", margin=6.0)
    Loss(mbls, margin=6.0, weight=0.1, reduction='mean')
    """
    return LOSSES[name](**options)


__all__ = [
    "LOSSES",
    "Loss",
    "LossError",
    "LossFunction",
    "OwnLoss",
    "brier",
    "ce",
    "ce_brier",
    "check_labels",
    "check_loss",
    "create",
    "dual_focal",
    "flsd53",
    "focal",
    "label_smoothing",
    "mbls",
    "mmce",
]
