"""Training losses: calibrated logits and labels in, one number out, so that each goes with every head."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from calattn.losses.cross_entropy import brier, ce, ce_brier, label_smoothing, mbls, mmce, mmce_divided
from calattn.losses.focal_loss import dual_focal, flsd53, focal
from calattn.losses.loss import Loss, LossError, OwnLoss, check_labels, check_loss
from calattn.registry import Registry

LossFunction = Callable[[Tensor, Tensor], Tensor]

# name → factory: keyword options in, a (logits, labels) → loss callable out.
LOSSES: Registry[Callable[..., LossFunction]] = Registry("loss")
for _function in (ce, brier, ce_brier, mmce, mmce_divided, label_smoothing, focal, flsd53, dual_focal, mbls):
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
    "mmce_divided",
]
