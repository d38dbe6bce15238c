"""Loaders: batches on the device, from arrays that live there or from images decoded by worker processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Protocol

import torch
from jaxtyping import Float, Int, Shaped, UInt8
from torch import Tensor

from calattn import checks
from calattn.data.augment.pipeline import Augment
from calattn.data.images import ArrayImages, DataError, Images
from calattn.data.plan import epoch_plan, upload
from calattn.data.streaming import Decoder, Stream


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """Images as the network sees them, and targets: classes int64 [b], or soft labels float32 [b, classes]."""

    images: Float[Tensor, "b c h w"]
    targets: Shaped[Tensor, "b ..."]


@dataclasses.dataclass(frozen=True, eq=False)
class EvalBatch(Batch):
    """Also the labels, the rows in the split's own order, and how many of the batch are real: the rest only fill it up."""

    labels: Int[Tensor, " b"]
    indices: Int[Tensor, " b"]
    count: int


def input_size(images: Images, size: int | None) -> tuple[int, int]:
    """`Augment.size_in` for a split: arrays keep their own size, images that are decoded one by one come in the final one."""
    if size is not None and not isinstance(images, ArrayImages):
        return size, size
    if images.size is None:
        raise DataError(
            "the images differ in size; set data.size to the side that the network should see, say data.size=224"
        )
    return images.size


class TrainLoader:
    """Shuffled, augmented batches: functions of (seed, epoch, step) alone, whatever the devices, processes and workers.

    `batch_size` is that of all processes together; rank r takes its part of every batch, so that the union over the ranks is
    the batch of a single process. What does not fill a batch is left out of the epoch. Arrays are kept on the device unless
    `in_memory` is false; other images, and resized crops, go through `workers` processes.
    """

    def __init__(
        self,
        images: Images,
        indices: Int[Tensor, " m"] | None,
        augment: Augment,
        *,
        seed: int,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str = "cpu",
        workers: int = 0,
        in_memory: bool = True,
    ) -> None:
        self.augment, self.seed, self.device = augment, seed, torch.device(device)
        self.batch_size, self.rank, self.world_size = batch_size, *_place(rank, world_size)
        _check_fit(images, augment)
        self._rows = _rows(images, indices)
        self.steps = len(self._rows) // checks.positive_int(batch_size, "batch_size")
        self._check_batches()
        self._resized = augment.crop == "resized"
        self._source = _source(images, augment, self.device, workers, in_memory=in_memory and not self._resized)
        self._targets = upload(_targets(images), self.device)

    def _check_batches(self) -> None:
        if self.steps == 0:
            raise ValueError(
                f"train.batch_size={self.batch_size} is more than the {len(self._rows)} training images; make it smaller"
            )
        if self.batch_size % self.world_size:
            raise ValueError(
                f"a batch of {self.batch_size} (train.batch_size / optimizer.accumulate) does not divide among "
                f"{self.world_size} processes"
            )
        if self.augment.mixes and (self.batch_size // self.world_size) % 2:
            share = self.batch_size // self.world_size
            raise ValueError(
                f"mixup and cutmix pair images, so a process's share of a batch must be even; it is {share}"
            )

    def __len__(self) -> int:
        return self.steps

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from step `start` on: those that a run which did not stop would have seen."""
        if not 0 <= start <= self.steps:
            raise ValueError(f"start={start} is outside the epoch's {self.steps} steps")
        augment = self.augment
        plan = epoch_plan(
            len(self._rows), seed=self.seed, epoch=epoch, num_draws=augment.num_draws, derive=augment.derive
        )
        return self._batches(self._share(self._rows[plan.order])[start:], self._share(plan.draws)[start:])

    def _share(self, values: Shaped[Tensor, "n ..."]) -> Shaped[Tensor, "s b ..."]:
        """This rank's part of every step."""
        whole = values[: self.steps * self.batch_size]
        return whole.view(self.steps, self.world_size, -1, *values.shape[1:])[:, self.rank].contiguous()

    def _batches(self, rows: Int[Tensor, "s b"], draws: Float[Tensor, "s b k"]) -> Iterator[Batch]:
        # An epoch's numbers go over in one copy: a batch then costs kernel launches only.
        on_device, numbers = upload(rows, self.device), upload(draws, self.device)
        crops = draws[:, :, :4] if self._resized else None
        for step, images in enumerate(self._source.batches(rows, crops)):
            targets = self._targets.index_select(0, on_device[step])
            yield Batch(*self.augment.train(images, targets, numbers[step]))


class EvalLoader:
    """Every image once, in order, with test-time transforms; ranks take contiguous shares.

    All batches have one size and all ranks the same number of them (compiled models and collective operations need that): short
    ones are filled up with repeated rows, and `count` says how many are real. It may be 0.
    """

    def __init__(
        self,
        images: Images,
        indices: Int[Tensor, " m"] | None,
        augment: Augment,
        *,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str = "cpu",
        workers: int = 0,
        in_memory: bool = True,
    ) -> None:
        self.augment, self.device = augment, torch.device(device)
        self.rank, self.world_size = _place(rank, world_size)
        _check_fit(images, augment)
        chosen = _rows(images, indices)
        if indices is not None:
            images = images.select(chosen)  # so that only these go to the device
        largest = -(-len(chosen) // world_size)
        self.batch_size = min(checks.positive_int(batch_size, "batch_size"), largest)
        self.steps = -(-largest // self.batch_size)
        first, last = (len(chosen) * r // world_size for r in (rank, rank + 1))
        self.num_images = last - first
        filled = torch.arange(self.steps * self.batch_size).clamp_max(max(0, self.num_images - 1)) + min(
            first, len(chosen) - 1
        )
        self._rows = filled.view(self.steps, self.batch_size)
        self._source = _source(images, augment, self.device, workers, in_memory=in_memory)
        self._on_device = upload(self._rows, self.device)
        self._indices = upload(chosen[self._rows], self.device)
        self._labels, self._targets = upload(images.labels, self.device), upload(_targets(images), self.device)

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[EvalBatch]:
        for step, images in enumerate(self._source.batches(self._rows, None)):
            rows = self._on_device[step]
            yield EvalBatch(
                images=self.augment.test(images),
                targets=self._targets.index_select(0, rows),
                labels=self._labels.index_select(0, rows),
                indices=self._indices[step],
                count=min(max(self.num_images - step * self.batch_size, 0), self.batch_size),
            )


class _Source(Protocol):
    def batches(
        self, rows: Int[Tensor, "s b"], crops: Float[Tensor, "s b 4"] | None
    ) -> Iterator[UInt8[Tensor, "b c h w"]]:
        """The images of these rows on the device, a batch a step."""


class _Resident:
    """All images as one array on the device."""

    def __init__(self, array: UInt8[Tensor, "n c h w"], device: torch.device) -> None:
        self.array = upload(array, device)

    def batches(
        self,
        rows: Int[Tensor, "s b"],
        crops: Float[Tensor, "s b 4"] | None,  # noqa: ARG002  (resized crops are made where images are decoded)
    ) -> Iterator[UInt8[Tensor, "b c h w"]]:
        for step in upload(rows, self.array.device):
            yield self.array.index_select(0, step)


def _source(images: Images, augment: Augment, device: torch.device, workers: int, *, in_memory: bool) -> _Source:
    if in_memory and isinstance(images, ArrayImages):
        return _Resident(images.array, device)
    if workers < 0:
        raise ValueError(f"workers must be ≥ 0, got {workers}")
    return Stream(Decoder(images, augment.size_in, augment.interpolation), device=device, workers=workers)


def _targets(images: Images) -> Tensor:
    return images.labels.long() if images.soft_labels is None else images.soft_labels.float()


def _rows(images: Images, indices: Tensor | None) -> Int[Tensor, " m"]:
    if indices is None:
        return torch.arange(len(images))
    if indices.ndim != 1 or indices.is_floating_point() or indices.dtype == torch.bool or len(indices) == 0:
        raise ValueError(f"indices must be one or more row numbers, got {indices.dtype} {list(indices.shape)}")
    low, high = int(indices.min()), int(indices.max())
    if low < 0 or high >= len(images):
        raise ValueError(f"indices must be in [0, {len(images) - 1}], got {low if low < 0 else high}")
    return indices.to(device="cpu", dtype=torch.int64)


def _place(rank: int, world_size: int) -> tuple[int, int]:
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be in [0, world_size), got rank={rank} of world_size={world_size}")
    return rank, world_size


def _check_fit(images: Images, augment: Augment) -> None:
    """The augmentation was made for images like these."""
    if images.channels != augment.channels:
        raise DataError(f"the images have {images.channels} channels, the augmentation is for {augment.channels}")
    if images.num_classes != augment.num_classes:
        raise DataError(f"the images have {images.num_classes} classes, the augmentation is for {augment.num_classes}")
    if isinstance(images, ArrayImages) and images.size != augment.size_in:
        raise DataError(f"the images are {images.size}, the augmentation is for {augment.size_in} (height, width)")
