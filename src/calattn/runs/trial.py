"""A trial of what a spec builds, before a folder is made: one call of the loss, two images through the network."""

from __future__ import annotations

import torch
from torch import Tensor

from calattn import losses
from calattn.data.mixing import soft_labels
from calattn.models.attach import CalibratedModel
from calattn.runs.build import (
    RunData,
    build_augment,
    build_loss,
    network_size,
    optimizer_for,
    schedule_for,
    told,
)
from calattn.runs.spec import RunSpec
from calattn.types import ModelOutput

_CHECKED_ROWS = 256  # of a micro-batch, on which the loss is tried out


def check_run(spec: RunSpec, model: CalibratedModel, found: RunData) -> int:
    """Builds what is left to build and tries it out: whatever a spec has wrong shows before a folder is made.

    Returns the updates an epoch.
    """
    images = len(found.train_rows)
    updates = images // (spec.train.batch_size // spec.optimizer.accumulate) // spec.optimizer.accumulate
    if updates == 0:
        raise ValueError(
            f"train.batch_size={spec.train.batch_size} is more than the {images} training images; make it smaller"
        )
    losses.check_loss(build_loss(spec), spec.loss.name, _some_targets(spec, found), num_classes=found.train.num_classes)
    schedule_for(spec)(optimizer_for(spec, model), updates)
    build_augment(spec, found)
    _check_forward(spec, model, found)
    return updates


def _some_targets(spec: RunSpec, found: RunData) -> Tensor:
    """The first training labels, as many as a micro-batch has, as a loss gets them: soft ones where images are mixed."""
    rows = found.train_rows[: min(_CHECKED_ROWS, spec.train.batch_size // spec.optimizer.accumulate)]
    soft = found.train.soft_labels
    targets = found.train.labels[rows].long() if soft is None else soft[rows].float()
    mixed = spec.augment.mixup or spec.augment.cutmix
    return soft_labels(targets, found.train.num_classes) if mixed else targets


def _check_forward(spec: RunSpec, model: CalibratedModel, found: RunData) -> None:
    """What backbone and head give for two images: with one, a wrong shape may pass as a broadcast.

    A network that halves its grid too often says so only when it runs.
    """
    size, name = network_size(spec, found.train), spec.model.backbone
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, found.dataset.channels, size, size, generator=generator)
    training, in_head = model.training, []
    seen = model.head.register_forward_pre_hook(lambda *_: in_head.append(True))
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            output = model.eval().output(images)
            if in_head:
                _check_output(output, spec, num_classes=found.train.num_classes)
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError) as error:
        if isinstance(error, torch.OutOfMemoryError | _Refused):
            raise
        if in_head:
            raise ValueError(f"the head {spec.model.head!r} fails on two images ({told(error)}); mend it") from error
        raise ValueError(
            f"{name} does not take images of {size} px ({told(error)}); choose another --size or model.backbone"
        ) from error
    finally:
        seen.remove()
        model.train(training)


class _Refused(ValueError):
    """What a network gives does not fit; the message says how."""


def _check_output(output: ModelOutput, spec: RunSpec, *, num_classes: int) -> None:
    if list(output.logits.shape) != [2, num_classes]:
        raise _Refused(
            f"the backbone {spec.model.backbone!r} gives logits {list(output.logits.shape)} for two images of {num_classes} "
            f"classes; they must be [2, {num_classes}]: let its last layer have num_classes outputs"
        )
    if list(output.scale.shape) != [2]:
        raise _Refused(
            f"the head {spec.model.head!r} gives a scale of shape {list(output.scale.shape)} for two images; it must be [2], a "
            "number an image: squeeze(1) or expand it"
        )
    if not (torch.isfinite(output.scale) & (output.scale > 0)).all():
        raise _Refused(
            f"the head {spec.model.head!r} gives the scale {output.scale.tolist()} for two random images; a temperature must be "
            "positive and finite: end it with softplus(…) + 1e-6, or exp(…)"
        )
    calibrated = output.calibrated_logits
    if calibrated.shape != output.logits.shape:
        raise _Refused(
            f"the head {spec.model.head!r} turns logits {list(output.logits.shape)} into {list(calibrated.shape)}; its offset "
            "must have the shape of the logits"
        )
