"""What training has to remember: weights, their moving average, the optimiser and three counters."""

from __future__ import annotations

from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from calattn.attachment import CalibratedModel


class TrainingState:
    """The live objects and how they become a tree for a checkpoint, and come back from one.

    `epoch` counts finished epochs, `update` all updates, `update_in_epoch` those of the epoch under way. In the tree, "weights"
    are the ones to evaluate: the moving average where there is one, with the raw ones beside it as "model".
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
        self.sharded = "fsdp" in type(fabric.strategy).__name__.lower()
        self.ema = None
        if ema_decay is not None:
            if self.sharded:
                raise ValueError(
                    "optimizer.ema_decay does not work with sharded weights; use --strategy ddp, or leave it out"
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

    def weights(self) -> dict[str, Tensor]:
        """The weights to evaluate, whole on this process, not copied."""
        if self.ema is not None:
            return self.ema.module.state_dict()
        return self._model_weights()

    def snapshot(self) -> dict[str, Tensor]:
        """A copy of `weights` that further training leaves alone."""
        return {name: tensor.detach().clone() for name, tensor in self.weights().items()}

    def is_finite(self) -> bool:
        """Whether every weight is: one number comes back from the device."""
        floating = [p.detach() for p in self.model.parameters() if p.is_floating_point()]
        return bool(torch.isfinite(torch.stack([norm.float() for norm in torch._foreach_norm(floating)]).sum()))

    def tree(self, sums: Tensor) -> dict[str, Any]:
        tree: dict[str, Any] = {
            "weights": self.weights(),
            "optimizer": self._optimizer_state(),
            "precision": self.fabric.strategy.precision.state_dict(),
            "counters": {"epoch": self.epoch, "update": self.update, "update_in_epoch": self.update_in_epoch},
            "sums": sums,
        }
        if self.ema is not None:
            tree["model"] = self._model_weights()
        return tree

    def load(self, tree: dict[str, Any]) -> Tensor:
        """Puts everything back; returns the sums of the epoch under way."""
        self._load_model(tree["model"] if self.ema is not None else tree["weights"])
        if self.ema is not None:
            self.ema.module.load_state_dict(tree["weights"])
        self._load_optimizer(tree["optimizer"])
        self.fabric.strategy.precision.load_state_dict(tree["precision"])
        counters = tree["counters"]
        self.epoch, self.update, self.update_in_epoch = (counters[k] for k in ("epoch", "update", "update_in_epoch"))
        self.unsaved = False
        return tree["sums"]

    # Sharded weights (FSDP) are gathered and scattered by torch's own functions, which know the layout.

    def _model_weights(self) -> dict[str, Tensor]:
        if not self.sharded:
            return self.model.state_dict()
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        whole = get_model_state_dict(self.wrapped, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        return {
            name.rpartition("model.backbone.")[1] + name.rpartition("model.backbone.")[2]: t
            for name, t in whole.items()
        }

    def _load_model(self, weights: dict[str, Tensor]) -> None:
        if not self.sharded:
            self.model.load_state_dict(weights)
            return
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

        set_model_state_dict(self.wrapped, weights, options=StateDictOptions(full_state_dict=True))

    def _optimizer_state(self) -> dict[str, Any]:
        if not self.sharded:
            return self.optimizer.state_dict()
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        return get_optimizer_state_dict(self.wrapped, self.optimizer.optimizer, options=options)

    def _load_optimizer(self, state: dict[str, Any]) -> None:
        if not self.sharded:
            self.optimizer.load_state_dict(state)
            return
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

        set_optimizer_state_dict(
            self.wrapped, self.optimizer.optimizer, state, options=StateDictOptions(full_state_dict=True)
        )
