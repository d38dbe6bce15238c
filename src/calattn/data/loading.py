"""Loaders: batches on the device, from arrays that live there or from images decoded by worker processes."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int, Shaped, UInt8
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from calattn import checks
from calattn.data.augment.pipeline import Augment
from calattn.data.decoding import Box, resized_part_of
from calattn.data.epoch import draw_epoch
from calattn.data.images import ArrayImages, DataError, Images, upload
from calattn.data.resize import Interpolation
from calattn.errors import InputError

CROPPED_SHARE = (0.08, 1.0)
CROPPED_ASPECT = (3 / 4, 4 / 3)


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
        raise DataError("the images differ in size; set the side that the network should see (in a run: data.size=224)")
    return images.size


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placement:
    """Where a loader's batches go, and who decodes them.

    Rank r of `world_size` processes takes its part of every batch. Arrays are kept on the device unless `in_memory` is false;
    other images, and resized crops, go through `workers` processes.
    """

    rank: int = 0
    world_size: int = 1
    device: torch.device | str = "cpu"
    workers: int = 0
    in_memory: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise InputError(
                f"must be in [0, world_size), got rank={self.rank} of world_size={self.world_size}", argument="rank"
            )
        if self.workers < 0:
            raise InputError(f"must be ≥ 0, got {self.workers}", argument="workers")


class TrainLoader:
    """Shuffled, augmented batches: functions of (seed, epoch, step) alone, whatever the devices, processes and workers.

    `batch_size` is that of all processes together; what does not fill a batch is left out of the epoch. `place` are the fields of
    `Placement`; the union of all ranks' parts of a batch is the batch of a single process.
    """

    def __init__(
        self,
        images: Images,
        indices: Int[Tensor, " m"] | None,
        augment: Augment,
        *,
        seed: int,
        batch_size: int,
        **place: Any,
    ) -> None:
        self.augment, self.seed, self.batch_size, self.place = augment, seed, batch_size, Placement(**place)
        self.device = torch.device(self.place.device)
        _check_fit(images, augment)
        self._rows = _rows(images, indices)
        self.steps = len(self._rows) // checks.positive_int(batch_size, "batch_size")
        self._check_batches()
        self._resized = augment.crop == "resized"
        self._feed = _feed(images, augment, self.place, resized=self._resized)
        self._targets = upload(_targets(images), self.device)

    def _check_batches(self) -> None:
        share, rest = divmod(self.batch_size, self.place.world_size)
        if self.steps == 0:
            raise InputError(
                f"is {self.batch_size}, more than the {len(self._rows)} training images",
                argument="batch_size",
                remedy="make it smaller",
            )
        if rest:
            raise InputError(
                f"is {self.batch_size}, which {self.place.world_size} processes cannot share equally "
                "(in a run it is train.batch_size / optimizer.accumulate)",
                argument="batch_size",
            )
        if self.augment.mixes and share % 2:
            raise InputError(
                f"leaves {share} images for each process; mixup and cutmix pair images, so that must be even",
                argument="batch_size",
            )

    def __len__(self) -> int:
        return self.steps

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from step `start` on: those that a run which did not stop would have seen."""
        if not 0 <= start <= self.steps:
            raise ValueError(f"start={start} is outside the epoch's {self.steps} steps")
        augment = self.augment
        plan = draw_epoch(
            len(self._rows), seed=self.seed, epoch=epoch, num_draws=augment.num_draws, derive=augment.derive
        )
        return self._batches(self._share(self._rows[plan.order])[start:], self._share(plan.draws)[start:])

    def _share(self, values: Shaped[Tensor, "n ..."]) -> Shaped[Tensor, "s b ..."]:
        """This rank's part of every step."""
        whole = values[: self.steps * self.batch_size]
        return whole.view(self.steps, self.place.world_size, -1, *values.shape[1:])[:, self.place.rank].contiguous()

    def _batches(self, rows: Int[Tensor, "s b"], draws: Float[Tensor, "s b k"]) -> Iterator[Batch]:
        # An epoch's numbers go over in one copy: a batch then costs kernel launches only.
        on_device, numbers = upload(rows, self.device), upload(draws, self.device)
        crops = draws[:, :, :4] if self._resized else None
        for step, images in enumerate(self._feed.batches(rows, crops)):
            targets = self._targets.index_select(0, on_device[step])
            yield Batch(*self.augment.train(images, targets, numbers[step]))


class EvalLoader:
    """Every image once, in order, with test-time transforms; ranks take contiguous shares.

    All batches have one size and all ranks the same number of them (compiled models and collective operations need that): short
    ones are filled up with repeated rows, and `count` is the number of real ones. It may be 0.
    """

    def __init__(
        self,
        images: Images,
        indices: Int[Tensor, " m"] | None,
        augment: Augment,
        *,
        batch_size: int,
        **place: Any,
    ) -> None:
        self.augment, self.place = augment, Placement(**place)
        self.device, world_size = torch.device(self.place.device), self.place.world_size
        _check_fit(images, augment)
        chosen = _rows(images, indices)
        if indices is not None:
            images = images.select(chosen)  # so that only these go to the device
        largest = -(-len(chosen) // world_size)
        self.batch_size = min(checks.positive_int(batch_size, "batch_size"), largest)
        self.steps = -(-largest // self.batch_size)
        first, last = (len(chosen) * r // world_size for r in (self.place.rank, self.place.rank + 1))
        self.num_images = last - first
        filled = torch.arange(self.steps * self.batch_size).clamp_max(max(0, self.num_images - 1)) + min(
            first, len(chosen) - 1
        )
        self._rows = filled.view(self.steps, self.batch_size)
        self._feed = _feed(images, augment, self.place)
        self._on_device = upload(self._rows, self.device)
        self._indices = upload(chosen[self._rows], self.device)
        self._labels, self._targets = upload(images.labels, self.device), upload(_targets(images), self.device)

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[EvalBatch]:
        for step, images in enumerate(self._feed.batches(self._rows, None)):
            rows = self._on_device[step]
            yield EvalBatch(
                images=self.augment.test(images),
                targets=self._targets.index_select(0, rows),
                labels=self._labels.index_select(0, rows),
                indices=self._indices[step],
                count=min(max(self.num_images - step * self.batch_size, 0), self.batch_size),
            )


class Resident:
    """All images as one array on the device."""

    def __init__(self, array: UInt8[Tensor, "n c h w"], device: torch.device) -> None:
        self.array = upload(array, device)

    def batches(self, rows: Int[Tensor, "s b"], crops: None) -> Iterator[UInt8[Tensor, "b c h w"]]:  # noqa: ARG002
        """The images of these rows on the device, one batch per step; resized crops are made where images are decoded."""
        for step in upload(rows, self.array.device):
            yield self.array.index_select(0, step)


class Request(NamedTuple):
    """What a worker needs to know of one sample: it holds no plan and no state, so it may live through all epochs."""

    row: int
    crop: tuple[float, float, float, float] | None


@dataclasses.dataclass(frozen=True)
class Decoder(Dataset[Tensor]):
    """Lists of requests to uint8 [b, c, height, width]; a message in its place where an image cannot be read."""

    images: Images
    size: tuple[int, int]
    interpolation: Interpolation

    def __getitems__(self, requests: Sequence[Request]) -> Tensor | str:
        try:
            return torch.stack([self.decode(request) for request in requests])
        except (DataError, OSError) as error:  # an exception would arrive with the worker's traceback in its message
            return f"{error}"

    def decode(self, request: Request) -> UInt8[Tensor, "c h w"]:
        """A random part of the image for training with resized crops; otherwise the centre, or the image if it fits."""
        if request.crop is None and self.images.size == self.size:
            return self.images.decode(request.row)
        box_of = None if request.crop is None else functools.partial(random_box, request.crop)
        return resized_part_of(self.images, request.row, self.size, interpolation=self.interpolation, box_of=box_of)


def random_box(draws: tuple[float, float, float, float], size: tuple[int, int]) -> Box:
    """(left, top, right, bottom) of 8 to 100 % of the area, aspect log-uniform in [3/4, 4/3], from draws (y, x, area, aspect).

    A side longer than the image's is cut to it.
    """
    y, x, share, aspect = draws
    area = (CROPPED_SHARE[0] + (CROPPED_SHARE[1] - CROPPED_SHARE[0]) * share) * size[0] * size[1]
    low, high = math.log(CROPPED_ASPECT[0]), math.log(CROPPED_ASPECT[1])
    ratio = math.exp(low + (high - low) * aspect)
    tall = min(max(1, round(math.sqrt(area / ratio))), size[0])
    wide = min(max(1, round(math.sqrt(area * ratio))), size[1])
    top, left = math.floor(y * (size[0] - tall + 1)), math.floor(x * (size[1] - wide + 1))
    return left, top, left + wide, top + tall


class _Requests(Sampler[list[Request]]):
    """The requests of the epoch at hand, batch by batch; set anew for each."""

    def __init__(self) -> None:
        self.rows: Int[Tensor, "s b"] = torch.empty(0, 0, dtype=torch.int64)
        self.crops: Float[Tensor, "s b 4"] | None = None

    def __iter__(self) -> Iterator[list[Request]]:
        for step, rows in enumerate(self.rows.tolist()):
            crops = [None] * len(rows) if self.crops is None else map(tuple, self.crops[step].tolist())
            yield [Request(row, crop) for row, crop in zip(rows, crops, strict=True)]


class Stream:
    """Batches of decoded images, in the order asked for whatever the number of workers, which live as long as this does."""

    def __init__(self, decoder: Decoder, *, device: torch.device, workers: int) -> None:
        self.device, self.workers = device, workers
        self._requests = _Requests()
        self._loader = DataLoader(
            decoder,
            batch_sampler=self._requests,
            num_workers=workers,
            persistent_workers=workers > 0,
            collate_fn=_as_it_is,
            pin_memory=device.type == "cuda",
            generator=torch.Generator(),  # or it would draw its workers' seeds from torch's global one
        )

    def batches(
        self, rows: Int[Tensor, "s b"], crops: Float[Tensor, "s b 4"] | None
    ) -> Iterator[UInt8[Tensor, "b c h w"]]:
        self._requests.rows, self._requests.crops = rows, crops
        batches: Iterator[Tensor | str] | None = None
        while True:
            try:
                # torch reports a dead worker wherever this process is at that moment, here too.
                batches = iter(self._loader) if batches is None else batches
                images = next(batches)
            except StopIteration:
                return
            except RuntimeError as error:
                if "DataLoader worker" not in str(error):
                    raise
                raise DataError(_worker_died(self.workers, error)) from error
            if isinstance(images, str):
                raise DataError(images)
            yield images.to(self.device, non_blocking=True)


def _worker_died(workers: int, error: RuntimeError) -> str:
    return (
        f"one of the {workers} processes that decode images died ({str(error).splitlines()[0]}); mostly memory ran out: "
        "use fewer workers or a larger /dev/shm (containers: --shm-size), or 0 workers to see the fault itself"
    )


def _as_it_is(batch: Any) -> Any:
    return batch


def _feed(images: Images, augment: Augment, place: Placement, *, resized: bool = False) -> Any:
    """`Resident` or `Stream`: what gives the images of some rows."""
    device = torch.device(place.device)
    if place.in_memory and not resized and isinstance(images, ArrayImages):
        return Resident(images.array, device)
    return Stream(Decoder(images, augment.size_in, augment.interpolation), device=device, workers=place.workers)


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


def _check_fit(images: Images, augment: Augment) -> None:
    """The augmentation was made for images like these."""
    if images.channels != augment.channels:
        raise DataError(f"the images have {images.channels} channels, the augmentation is for {augment.channels}")
    if images.num_classes != augment.num_classes:
        raise DataError(f"the images have {images.num_classes} classes, the augmentation is for {augment.num_classes}")
    if isinstance(images, ArrayImages) and images.size != augment.size_in:
        raise DataError(f"the images are {images.size}, the augmentation is for {augment.size_in} (height, width)")
