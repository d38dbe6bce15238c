"""The training step: the module that is compiled and wrapped, the state that it changes, the guard over its loss."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from lightning_fabric import Fabric
from torch import Tensor, nn

from calattn.engine.sharding import ShardedStrategy, divided_like, local, whole
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


class NonFiniteLoss(ArithmeticError):
    """The loss, or the weights, became NaN or infinite; the message says where and what to try."""


class LaggedCopy:
    """Reads a number on the device without making the host wait: on a GPU, `poll` gives a copy that was started at a poll before.

    None while there is none; elsewhere it is the number itself.
    """

    def __init__(self, like: Float[Tensor, ""] | Int[Tensor, ""]) -> None:
        self._copy = torch.empty_like(like, device="cpu").pin_memory() if like.is_cuda else None
        self._event: torch.cuda.Event | None = None

    def poll(self, value: Tensor) -> float | int | None:
        if self._copy is None:
            return value.item()
        found = None
        if self._event is not None and self._event.query():
            found, self._event = self._copy.item(), None
        if self._event is None:
            self._copy.copy_(value, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        return found


class FiniteGuard:
    """Remembers the first update whose loss was not finite; `poll` may lag behind on a GPU, `wait` looks at the present."""

    _NONE = torch.iinfo(torch.int64).max

    def __init__(self, device: torch.device) -> None:
        self._bad = torch.full((), self._NONE, dtype=torch.int64, device=device)
        self._copy = LaggedCopy(self._bad)

    def note(self, finite: Bool[Tensor, ""], update: int) -> None:
        self._bad = torch.where(finite, self._bad, self._bad.clamp_max(update))

    def poll(self) -> int | None:
        found = self._copy.poll(self._bad)
        return None if found is None or found == self._NONE else int(found)

    def wait(self) -> int | None:
        return None if (update := int(self._bad)) == self._NONE else update


class TrainingState:
    """The live objects and how they become a tree for a checkpoint, and come back from one.

    `epoch` counts finished epochs, `update` all updates, `update_in_epoch` those of the epoch under way. In the tree,
    "weights" are the ones to evaluate: the moving average where there is one, with the raw ones beside it as "model".
    """

    def __init__(
        self,
        fabric: Fabric,
        wrapped: nn.Module,
        model: CalibratedModel,
        optimizer: Any,
        *,
        ema_decay: float | None = None,
    ) -> None:
        self.fabric, self.wrapped, self.model, self.optimizer = fabric, wrapped, model, optimizer
        self.sharded = isinstance(fabric.strategy, ShardedStrategy)
        self.ema = None
        if ema_decay is not None:
            if self.sharded:
                raise ValueError(
                    f"optimizer.ema_decay={ema_decay} does not work with --strategy fsdp; leave it out, or use "
                    "--strategy ddp"
                )
            from timm.utils import ModelEmaV3

            self.ema = ModelEmaV3(model, decay=ema_decay, use_warmup=True)
        self.epoch = self.update = self.update_in_epoch = 0
        self.unsaved = True

    def after_update(self) -> None:
        self.update += 1
        self.update_in_epoch += 1
        self.unsaved = True
        if self.ema is not None:
            self.ema.update(self.model, step=self.update)

    def end_epoch(self) -> None:
        self.epoch += 1
        self.update_in_epoch = 0

    def weights(self) -> dict[str, Tensor | None]:
        """The weights to evaluate, not copied. Sharded ones are gathered: all must ask, and the first process gets them; the
        others get their names."""
        return self._whole(self.model.state_dict()) if self.ema is None else self.ema.module.state_dict()

    def snapshot(self) -> dict[str, Tensor]:
        """A copy of `weights` that further training leaves alone."""
        return {name: tensor.detach().clone() for name, tensor in self.weights().items() if tensor is not None}

    def is_finite(self) -> bool:
        """Whether every weight is: one number comes back from the device."""
        floating = [local(p.detach()) for p in self.model.parameters() if p.is_floating_point()]
        total = torch.stack([norm.float() for norm in torch._foreach_norm(floating)]).sum()
        if self.sharded:
            total = cast(Tensor, self.fabric.all_reduce(total, reduce_op="sum"))
        return bool(torch.isfinite(total))

    def tree(self, sums: Tensor) -> dict[str, Any]:
        tree: dict[str, Any] = {
            "weights": self.weights(),
            "optimizer": self._whole(self.optimizer.state_dict()),
            "precision": self.fabric.strategy.precision.state_dict(),
            "counters": {"epoch": self.epoch, "update": self.update, "update_in_epoch": self.update_in_epoch},
            "sums": sums,
        }
        if self.ema is not None:
            tree["model"] = self._whole(self.model.state_dict())
        return tree

    def load(self, tree: dict[str, Any]) -> Tensor:
        """Puts everything back; returns the sums of the epoch under way."""
        _load(self.model, tree["model"] if self.ema is not None else tree["weights"])
        if self.ema is not None:
            self.ema.module.load_state_dict(tree["weights"])
        self._load_optimizer(tree["optimizer"])
        self.fabric.strategy.precision.load_state_dict(tree["precision"])
        counters = tree["counters"]
        self.epoch, self.update, self.update_in_epoch = (counters[k] for k in ("epoch", "update", "update_in_epoch"))
        self.unsaved = False
        return tree["sums"]

    def put_head(self, tensors: dict[str, Tensor]) -> None:
        """The head's weights, which something other than the optimiser has found."""
        for model in (self.model, *(() if self.ema is None else (self.ema.module,))):
            _load(model, model.state_dict() | {f"head.{name}": tensor for name, tensor in tensors.items()})
        self.unsaved = True

    # Sharded tensors are written whole, in the layout that one process would write, and divided again when read.

    def _whole(self, tree: dict[str, Any]) -> dict[str, Any]:
        return whole(tree, keep=self.fabric.is_global_zero) if self.sharded else tree

    def _load_optimizer(self, saved: dict[str, Any]) -> None:
        # torch numbers the parameters in the order of the groups.
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        divided = {
            number: {key: divided_like(value, parameters[number]) for key, value in kept.items()}
            for number, kept in saved["state"].items()
        }
        self.optimizer.load_state_dict({**saved, "state": divided})


def _load(model: CalibratedModel, weights: dict[str, Tensor]) -> None:
    own = model.state_dict()
    model.load_state_dict({name: divided_like(t, own[name]) if name in own else t for name, t in weights.items()})
