"""A frozen network, and what it gives for a set of images."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from calattn import data
from calattn.data.augment.pipeline import Augment
from calattn.data.loading import EvalLoader
from calattn.heads.lesson import Reading
from calattn.models.attach import CalibratedModel
from calattn.types import Predictions

Judged = tuple[Tensor, Tensor | None]  # calibrated logits, and log s where there is a temperature per image
Method = Callable[["Seen"], Judged]


@dataclasses.dataclass(frozen=True, eq=False)
class Seen:
    """What the network gave for a set of images, in their order; `layers` are the CLS tokens of some blocks."""

    features: Tensor
    logits: Tensor
    labels: Tensor
    layers: tuple[Tensor, ...] = ()

    def predictions(self) -> Predictions:
        return Predictions(
            logits=self.logits.float().cpu(), labels=self.labels.cpu(), features=self.features.float().cpu()
        )

    def reading(self) -> Reading:
        return Reading(self.features, self.logits, self.labels)


class Network:
    """A frozen network that is read: features, logits and what its blocks give for the class token."""

    def __init__(self, model: CalibratedModel, augment: Augment, fabric: Any, batch_size: int) -> None:
        self.model, self.augment, self.fabric, self.batch_size = (
            model.to(fabric.device).eval(),
            augment,
            fabric,
            batch_size,
        )
        self._tokens: list[Tensor] = []
        self._seeing = False  # what others read with this network is not kept
        blocks = getattr(model.backbone, "blocks", None)
        if blocks is not None and getattr(model.backbone, "cls_token", None) is not None:
            for block in list(blocks)[1::2]:
                block.register_forward_hook(lambda _, __, out: self._keep(out))

    def _keep(self, out: Tensor) -> None:
        if self._seeing:
            self._tokens.append(out[:, 0].float())

    @torch.no_grad()
    def see(self, images: data.Images, rows: Tensor | None = None) -> Seen:
        loader = EvalLoader(images, rows, self.augment, batch_size=self.batch_size, device=self.fabric.device)
        parts = []
        for batch in loader:
            self._tokens.clear()
            self._seeing = True
            with self.fabric.autocast():
                out = self.model.output(batch.images)
            self._seeing = False
            kept = (out.features.float(), out.logits.float(), batch.labels, *self._tokens)
            parts.append([part[: batch.count].clone() for part in kept])
        features, logits, labels, *layers = (torch.cat(column) for column in zip(*parts, strict=True))
        return Seen(features, logits, labels, tuple(layers))
