"""`TeachHead`: a Lightning callback that teaches the head when training ends. Needs `pip install lightning`."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

from calattn.errors import InputError
from calattn.heads.lesson import Lesson
from calattn.models.teach import Transform, teach


class TeachHead(Callback):
    """At the end of `fit`, `calattn.teach` fills the head of the module's network: the last weights, not a checkpoint's.

    `train`, `validation`, `transform` and `lesson` are those of `calattn.teach`; `attribute` says where the module keeps its
    network. With `self.model = calattn.attach(network, head="taught")` from the start, checkpoints have the same tensors before
    and after, and `load_from_checkpoint` takes both. Under DDP every process teaches the same head; FSDP's shards are refused.

    >>> TeachHead([], [], lambda image: image).attribute
    'model'
    """

    def __init__(
        self,
        train: Any,
        validation: Any,
        transform: Transform,
        *,
        attribute: str = "model",
        lesson: Lesson | None = None,
    ) -> None:
        self.train, self.validation, self.transform = train, validation, transform
        self.attribute, self.lesson = attribute, lesson

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        network = getattr(pl_module, self.attribute, None)
        if not isinstance(network, nn.Module):
            kind = type(pl_module).__name__
            raise InputError(f"{kind} has no network called {self.attribute!r}; name it by TeachHead(…, attribute=…)")
        if "fsdp" in type(trainer.strategy).__name__.lower():
            raise InputError(
                "a head cannot be taught while FSDP holds the network in shards; call calattn.teach after fit"
            )
        taught = teach(network, self.train, self.validation, self.transform, lesson=self.lesson)
        setattr(pl_module, self.attribute, taught)
