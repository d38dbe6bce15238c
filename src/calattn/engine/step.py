"""The training step as one module: what is compiled, and what DDP or FSDP wraps."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from calattn.losses import LossFunction
from calattn.models.attach import CalibratedModel
from calattn.types import ModelOutput


class StepResult(NamedTuple):
    loss: Float[Tensor, ""]
    correct: Int[Tensor, ""]


class TrainStep(nn.Module):
    """`step(images, targets)` gives the loss and how many were right; `step(images)` gives the model's output."""

    def __init__(self, model: CalibratedModel, loss: LossFunction) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, images: Tensor, targets: Tensor | None = None) -> StepResult | ModelOutput:
        if targets is None:
            return self.model.output(images)
        logits = self.model(images)
        truth = targets.argmax(dim=1) if targets.is_floating_point() else targets
        return StepResult(self.loss(logits, targets), (logits.detach().argmax(dim=1) == truth).sum())


class FiniteGuard:
    """Remembers the first update whose loss was not finite, without making the host wait for the device.

    On a GPU, `poll` looks at a copy that was started at the poll before; `wait` looks at the present.
    """

    def __init__(self, device: torch.device) -> None:
        self._bad = torch.full((), torch.iinfo(torch.int64).max, dtype=torch.int64, device=device)
        self._on_gpu = device.type == "cuda"
        if self._on_gpu:
            self._copy = torch.full((), torch.iinfo(torch.int64).max, dtype=torch.int64).pin_memory()
            self._event: torch.cuda.Event | None = None

    def note(self, finite: Bool[Tensor, ""], update: int) -> None:
        self._bad = torch.where(finite, self._bad, self._bad.clamp_max(update))

    def poll(self) -> int | None:
        if not self._on_gpu:
            return self.wait()
        found = None
        if self._event is not None and self._event.query():
            found, self._event = self._read(self._copy), None
        if self._event is None:
            self._copy.copy_(self._bad, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        return found

    def wait(self) -> int | None:
        return self._read(self._bad)

    @staticmethod
    def _read(value: Tensor) -> int | None:
        update = int(value)
        return None if update == torch.iinfo(torch.int64).max else update
