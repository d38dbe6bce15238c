"""Streams: batches of one size from images that are decoded as they are needed, in this process or in worker processes."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from calattn.data.decoding import Box, centre_box, resized_part_of
from calattn.data.images import DataError, Images
from calattn.data.resize import Interpolation

CROPPED_SHARE = (0.08, 1.0)
CROPPED_ASPECT = (3 / 4, 4 / 3)


class Request(NamedTuple):
    """What a worker needs to know of one sample: so it holds no plan and no state, and may live through all epochs."""

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
        box_of = (
            functools.partial(centre_box, wanted=self.size)
            if request.crop is None
            else functools.partial(random_box, request.crop)
        )
        return resized_part_of(self.images, request.row, box_of, self.size, interpolation=self.interpolation)


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
                # torch says that a worker died wherever this process is when it hears of it, here too.
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
