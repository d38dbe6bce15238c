"""Optimisers and schedules by timm's names."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from calattn.registry import nearest

SCHEDULES = ("cosine", "multistep", "step", "poly", "tanh", "plateau", "constant")
# Arguments of timm's factory that have keys of their own, or follow from them.
_ELSEWHERE = {
    "optimizer": "optimizer",
    "sched": "schedule.name",
    "num_epochs": "train.epochs",
    "warmup_epochs": "schedule.warmup_epochs",
    "warmup_lr": "schedule.warmup_lr",
    "min_lr": "schedule.min_lr",
    "step_on_epochs": "schedule.name",
    "updates_per_epoch": "train.batch_size",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """An optimiser by timm's name. `decay_all` decays biases and norms too, and what the backbone excepts."""

    name: str
    lr: float
    weight_decay: float
    decay_all: bool = False
    fused: bool = False
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScheduleSettings:
    """A schedule by its name in `SCHEDULES`, over so many epochs; times in `options` are epochs too."""

    name: str
    epochs: int
    warmup_epochs: float = 0.0
    warmup_lr: float = 0.0
    min_lr: float = 0.0
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def build_optimizer(model: nn.Module, settings: OptimizerSettings) -> Optimizer:
    """The optimiser for the model's weights. timm's `sgd` is Nesterov's; `momentum` is the plain one."""
    from timm.optim import create_optimizer_v2, get_optimizer_class, list_optimizers

    name = settings.name
    inner = name.removeprefix("lookahead_")
    if inner not in list_optimizers():
        near = nearest(name, list_optimizers(), n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "`calattn list optimizers` shows timm's"
        raise ValueError(f"unknown optimiser {name!r}; {hint}")
    chosen = {
        key: tuple(value) if isinstance(value, list) else value for key, value in settings.options.items()
    }  # betas
    if settings.fused and "fused" in inspect.signature(get_optimizer_class(inner, bind_defaults=False)).parameters:
        chosen["fused"] = True
    if settings.decay_all:
        chosen["param_group_fn"] = lambda module: [p for p in module.parameters() if p.requires_grad]
    try:
        return create_optimizer_v2(model, opt=name, lr=settings.lr, weight_decay=settings.weight_decay, **chosen)
    except (TypeError, AttributeError, LookupError, ArithmeticError, AssertionError) as error:
        raise ValueError(
            f"the optimiser {name!r} does not take these options: {error}; see optimizer.options"
        ) from None


class Schedule:
    """The learning rate of every update, and for `plateau` of every epoch. It has no state that a restart could lose.

    `cosine`, `multistep`, … are timm's, stepped once an update; times in the options (`decay_milestones`, `decay_epochs`) are
    epochs. All warm up in a straight line from `warmup_lr`, update by update.
    """

    def __init__(self, optimizer: Optimizer, settings: ScheduleSettings, *, updates_per_epoch: int) -> None:
        from timm.scheduler import create_scheduler_v2

        name, epochs, warmup_epochs = settings.name, settings.epochs, settings.warmup_epochs
        if name not in SCHEDULES:
            near = nearest(name, SCHEDULES)
            raise ValueError(
                f"unknown schedule {name!r};{f' did you mean {near[0]!r}?' if near else ''} known: {', '.join(SCHEDULES)}"
            )
        if warmup_epochs >= epochs and warmup_epochs > 0:
            raise ValueError(
                f"schedule.warmup_epochs={warmup_epochs:g} is not less than train.epochs={epochs}; lower it, such as "
                "--set schedule.warmup_epochs=0"
            )
        self.by_epoch = name == "plateau"
        self._optimizer, self._updates_per_epoch, self._warmup_lr = optimizer, updates_per_epoch, settings.warmup_lr
        self._warmup = max(1, round(warmup_epochs * updates_per_epoch)) if warmup_epochs else 0
        given = dict(settings.options)
        unknown = set(given) - set(inspect.signature(create_scheduler_v2).parameters)
        if unknown:
            raise ValueError(f"schedule.options has no {sorted(unknown)[0]!r}; timm's create_scheduler_v2 lists them")
        if elsewhere := sorted(_ELSEWHERE.keys() & given.keys()):
            raise ValueError(f"schedule.options.{elsewhere[0]} has no effect; set {_ELSEWHERE[elsewhere[0]]}")
        if name == "constant":  # a multistep without steps, so that warm-up works as everywhere
            name, given = "multistep", {**given, "decay_milestones": [epochs + 1]}
        if self.by_epoch:
            # timm would warm up a whole epoch at a time, the first at `warmup_lr`, which may be 0: before_update does it.
            given = {"plateau_mode": "min", **given}
        else:
            given |= {"step_on_epochs": False, "updates_per_epoch": updates_per_epoch}
            # timm multiplies by updates and then counts in whole ones: a warm-up of half an epoch must come out whole.
            given |= {"warmup_epochs": self._warmup / updates_per_epoch} | _milestones(given, updates_per_epoch)
        self._timm, _ = create_scheduler_v2(
            optimizer, sched=name, num_epochs=epochs, warmup_lr=settings.warmup_lr, min_lr=settings.min_lr, **given
        )

    def before_update(self, update: int) -> None:
        """Sets the learning rate of update number `update`, counted from 0 over the whole run."""
        if not self.by_epoch:
            self._timm.step_update(update)
        elif self._warmup and update <= self._warmup:
            share, start = update / self._warmup, self._warmup_lr
            self._timm.update_groups([start + share * (full - start) for full in self._timm.base_values])

    def after_epoch(self, epoch: int, nll: float | None) -> None:
        """Tells a plateau schedule how epoch number `epoch`, counted from 1, ended; those of the warm-up do not count."""
        if self.by_epoch and epoch * self._updates_per_epoch > self._warmup:
            self._timm.step(epoch, nll if nll is not None and math.isfinite(nll) else None)

    @property
    def rates(self) -> Sequence[float]:
        return [group["lr"] for group in self._optimizer.param_groups]


def _milestones(given: Mapping[str, Any], updates_per_epoch: int) -> dict[str, Any]:
    """timm compares with the update after this one, and so drops one update early; half an update later mends that."""
    if "decay_milestones" not in given:
        return {}
    milestones = given["decay_milestones"]
    if not isinstance(milestones, Sequence) or not all(isinstance(m, int | float) for m in milestones):
        raise ValueError(f"schedule.options.decay_milestones must be a list of epochs, got {milestones!r}")
    return {"decay_milestones": [milestone + 0.5 / updates_per_epoch for milestone in milestones]}
