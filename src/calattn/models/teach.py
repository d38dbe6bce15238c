"""`teach`: a calibrated model from a trained one, its training images and some that it was not trained on."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from calattn.data.augment.distortions import RandAugment, Shifts
from calattn.heads import NoHead
from calattn.heads.lesson import MOST_OPERATIONS, Lesson, Reading, draws_of, teach_head
from calattn.models.attach import CalibratedModel, attach
from calattn.models.predict import predict
from calattn.seeds import seed_of

Transform = Callable[[Image.Image], Tensor]


def teach(
    model: nn.Module,
    train: Any,
    validation: Any,
    transform: Transform,
    *,
    lesson: Lesson | None = None,
    seed: int = 0,
    batch_size: int = 256,
    workers: int = 0,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> CalibratedModel:
    """The model with a head that gives each image its own temperature; the model's weights stay as they are.

    `train` and `validation` are data sets of (image, label), images as PIL or uint8 (CHW tensors, HWC arrays): those it was
    trained on, and others of the same kind, which it must not have seen. `transform` makes of a PIL image what the model takes:
    that of its test images, without augmentation. The model stays on its device and comes back in evaluation mode. Distorting
    takes milliseconds an image, so 150,000 readings take minutes: `workers` processes share it, `lesson=Lesson(readings=…)` asks
    for fewer.

    >>> images = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
    >>> data = [(image, int(image.mean() > 127)) for image in images]
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    >>> transform = lambda image: torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255
    >>> taught = teach(net, data[:30], data[30:], transform, lesson=Lesson(steps=20))
    >>> taught.output(transform(Image.fromarray(images[0]))[None]).scale.shape
    torch.Size([1])
    """
    lesson = lesson or Lesson()
    inner = model if isinstance(model, CalibratedModel) else attach(model, head="none")
    bare = CalibratedModel(inner.backbone, NoHead(), features=inner.features, adapter=inner.adapter)

    classes = inner.adapter.num_classes
    images, held_out = (
        _Labelled(name, _sized(dataset, name), classes)
        for name, dataset in (("train", train), ("validation", validation))
    )

    def read(name: str, dataset: _Labelled, distort: _Distort | None, wanted: int | None) -> Reading:
        draws = 1 if wanted is None else draws_of(len(dataset), wanted)
        count = len(dataset) * draws if wanted is None else min(len(dataset) * draws, max(wanted, 1))
        order = torch.cat(
            [torch.randperm(len(dataset), generator=_generator(seed, name, draw)) for draw in range(draws)]
        )
        views = _Views(dataset, transform, order[:count], distort, seed_of(seed, name))
        done = 0

        def told(size: int) -> None:
            nonlocal done
            done += size
            if on_progress is not None:
                on_progress(f"reading {name} images", done, count)

        found = predict(bare, DataLoader(views, batch_size=batch_size, num_workers=workers), on_batch=told)
        assert found.features is not None
        place = next((parameter.device for parameter in inner.parameters()), torch.device("cpu"))
        return Reading(found.features.to(place), found.logits.to(place), found.labels.to(place))

    distorted = read("distorted", images, _randaugmented, lesson.readings)
    clean, shifted = read("held-out", held_out, None, None), read("shifted", held_out, _shifted, lesson.shifted)
    on_step = None if on_progress is None else lambda done, total: on_progress("teaching the head", done, total)
    head = teach_head(distorted, clean, shifted, lesson, seed=seed, on_step=on_step)
    return attach(inner.backbone, inner.features, head=head, adapter=inner.adapter).eval()


_Distort = Callable[[Tensor, Callable[[], Tensor], torch.Generator], Tensor]
"""Of pixels, a function that fetches another image of that size, and random numbers."""


@dataclasses.dataclass(frozen=True)
class _Labelled:
    """A data set of (image, label), each item checked as it is fetched; `name` and the row are in what is said of it."""

    name: str
    dataset: Any
    num_classes: int | None

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: int) -> tuple[Image.Image, int]:
        item = self.dataset[row]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise ValueError(f"{self.name}[{row}] is {type(item).__name__}; each item must be (image, label)")
        image, label = item
        if not isinstance(label, numbers.Integral | np.integer) and not (isinstance(label, Tensor) and label.ndim == 0):
            raise ValueError(f"the label of {self.name}[{row}] is {label!r}; it must be the number of a class, from 0")
        if int(label) < 0 or (self.num_classes is not None and int(label) >= self.num_classes):
            raise ValueError(
                f"the label of {self.name}[{row}] is {int(label)}, outside [0, {(self.num_classes or 1) - 1}], the classes of "
                "the network; number them from 0 as in training"
            )
        return opened(image, f"the image of {self.name}[{row}]"), int(label)


def _sized(dataset: Any, name: str) -> Any:
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise ValueError(
            f"{name} is {type(dataset).__name__}, without a length; pass a data set or a list of (image, label), not a loader"
        )
    if len(dataset) == 0:
        raise ValueError(f"{name} holds no image; a head is taught with training images and anchored on held-out ones")
    return dataset


@dataclasses.dataclass(frozen=True)
class _Views(Dataset[tuple[Tensor, int]]):
    """What the network sees of a data set's images: `rows` of them, each distorted by random numbers of its own."""

    dataset: _Labelled
    transform: Transform
    rows: Tensor
    distort: _Distort | None
    seed: int

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, label = self.dataset[int(self.rows[index])]
        if self.distort is not None:
            generator, size = _generator(self.seed, "view", index), image.size

            def other() -> Tensor:
                row = int(torch.randint(len(self.dataset), (), generator=generator))
                return _pixels(self.dataset[row][0].resize(size))

            image = _picture(self.distort(_pixels(image), other, generator))
        return self.transform(image), label


def _randaugmented(image: Tensor, _: Callable[[], Tensor], generator: torch.Generator) -> Tensor:
    augment = RandAugment(num_ops=MOST_OPERATIONS, magnitude="any", size=(image.shape[1], image.shape[2]))
    return augment(image[None], augment.derive(torch.rand(1, augment.num_draws, generator=generator)))[0]


def _shifted(image: Tensor, other: Callable[[], Tensor], generator: torch.Generator) -> Tensor:
    shifts = Shifts(size=(image.shape[1], image.shape[2]))
    return shifts(torch.stack([image, other()]), shifts.derive(torch.rand(2, shifts.num_draws, generator=generator)))[0]


def _generator(*parts: int | str) -> torch.Generator:
    return torch.Generator().manual_seed(seed_of(*parts))


def opened(image: Any, name: str) -> Image.Image:
    """A PIL image in RGB or grey, of whatever a data set gives."""
    if isinstance(image, Tensor) and image.dtype == torch.uint8 and image.ndim == 3 and len(image) in (1, 3):
        image = _picture(image)
    elif (
        isinstance(image, np.ndarray)
        and image.dtype == np.uint8
        and (image.ndim == 2 or image.shape[2:] in ((1,), (3,), (4,)))
    ):
        image = Image.fromarray(image[:, :, 0] if image.shape[2:] == (1,) else image)
    if not isinstance(image, Image.Image):
        kind = f"{image.dtype} {list(image.shape)}" if isinstance(image, Tensor | np.ndarray) else type(image).__name__
        raise ValueError(
            f"{name} is {kind}; images must be PIL or uint8, before normalisation: pass them without their transform"
        )
    return image if image.mode in ("L", "RGB") else image.convert("RGB")


def _pixels(image: Image.Image) -> Tensor:
    array = torch.from_numpy(np.array(image))
    return array[None] if array.ndim == 2 else array.permute(2, 0, 1)


def _picture(pixels: Tensor) -> Image.Image:
    array = pixels.cpu().numpy()
    return Image.fromarray(array[0] if len(array) == 1 else np.ascontiguousarray(array.transpose(1, 2, 0)))
