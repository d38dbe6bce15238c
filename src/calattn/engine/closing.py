"""The closing phase of a run: reads distorted and held-out images with the trained network, and teaches its head."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import torch
from jaxtyping import Int
from lightning_fabric import Fabric
from torch import Tensor

from calattn.data.augment.pipeline import Augment
from calattn.data.images import Images
from calattn.data.loading import TrainLoader
from calattn.engine.predict import gathered
from calattn.heads.lesson import MOST_OPERATIONS, Lesson, Reading, draws_of, teach_head
from calattn.heads.taught import Taught
from calattn.models.predict import copied
from calattn.seeds import seed_of
from calattn.types import ModelOutput

Told = Callable[[str, int, int], None]
"""Who is told how far it is: what is done, how much of it, out of how much."""


@dataclasses.dataclass(frozen=True, eq=False)
class LessonImages:
    """Images to read: which rows, and what training does to them."""

    images: Images
    rows: Int[Tensor, " n"]
    augment: Augment

    def distorted(self) -> Augment:
        """As in training, then up to three operations of RandAugment at any magnitude; nothing mixed or erased."""
        return dataclasses.replace(self._plain(), randaugment_ops=MOST_OPERATIONS, randaugment_magnitude="any")

    def shifted(self) -> Augment:
        """Distortions of kinds that `distorted` has none of, and nothing else."""
        return dataclasses.replace(self.untouched(), shifts=True)

    def untouched(self) -> Augment:
        return dataclasses.replace(self._plain(), crop=0, flip=False)

    def _plain(self) -> Augment:
        return dataclasses.replace(self.augment, randaugment_ops=0, shifts=False, erasing=0.0, mixup=0.0, cutmix=0.0)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Reader:
    """Reads images with a frozen network in evaluation mode, every process its share."""

    forward: Callable[[Tensor], ModelOutput]
    fabric: Fabric
    seed: int
    batch_size: int
    workers: int = 0
    told: Told | None = None

    @torch.no_grad()
    def read(self, name: str, source: LessonImages, augment: Augment, wanted: int | None) -> Reading:
        """About `wanted` readings (None: each image once), over all processes and in the order of a single one."""
        draws = 1 if wanted is None else draws_of(len(source.rows), wanted)
        loader = self._loader(source, augment, seed_of(self.seed, "teach", name))
        steps = loader.steps * draws
        if wanted is not None:
            steps = min(steps, max(1, round(wanted / loader.batch_size)))
        every = itertools.chain.from_iterable(loader.epoch(draw) for draw in range(draws))
        parts: list[tuple[Tensor, Tensor, Tensor]] = []
        for number, batch in enumerate(itertools.islice(every, steps), start=1):
            with self.fabric.autocast():
                out = self.forward(self.fabric.strategy.precision.convert_input(batch.images))
            parts.append((copied(out.features), copied(out.logits), batch.targets))
            if self.told is not None:
                self.told(f"reading {name} images", number, steps)
        return Reading(*(self._in_order(torch.cat(column), steps) for column in zip(*parts, strict=True)))

    def _loader(self, source: LessonImages, augment: Augment, seed: int) -> TrainLoader:
        count, world = len(source.rows), self.fabric.world_size
        size = count // -(-count // self.batch_size)  # equal batches; fewer images than there are batches stay out
        unit = 2 * world if augment.shifts else world  # shifts pair the images that a process has
        return TrainLoader(
            source.images,
            source.rows,
            augment,
            seed=seed,
            batch_size=max(world, size - size % unit),
            rank=self.fabric.global_rank,
            world_size=world,
            device=self.fabric.device,
            workers=self.workers,
        )

    def _in_order(self, values: Tensor, steps: int) -> Tensor:
        """The shares of all processes put together step by step."""
        world = self.fabric.world_size
        if world == 1:
            return values
        every = gathered(values, self.fabric)
        by_step = every.view(world, steps, -1, *every.shape[1:]).transpose(0, 1)
        return by_step.reshape(every.shape).to(values.device)


def teach(reader: Reader, train: LessonImages, validation: LessonImages, lesson: Lesson) -> Taught | None:
    """The head for the reader's network, in the process that writes; None in the others, which only read."""
    told = reader.told
    distorted = reader.read("distorted", train, train.distorted(), lesson.readings)
    clean = reader.read("held-out", validation, validation.untouched(), None)
    shifted = reader.read("shifted", validation, validation.shifted(), lesson.shifted)
    if not reader.fabric.is_global_zero:
        return None
    on_step = None if told is None else lambda done, total: told("teaching the head", done, total)
    return teach_head(distorted, clean, shifted, lesson, seed=seed_of(reader.seed, "teach"), on_step=on_step)
