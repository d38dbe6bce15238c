"""Loaders: the same batches whatever the processes, workers and restarts."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Iterable

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as F
from PIL import Image
from torchvision.transforms import InterpolationMode

from calattn import data
from calattn.data.augment.pipeline import Augment
from calattn.data.decoding import in_memory
from calattn.data.epoch import draw_epoch
from calattn.data.images import ArrayImages, DataError, Images
from calattn.data.loading import Batch, Decoder, EvalLoader, Request, TrainLoader, input_size, random_box
from calattn.data.resize import resize
from tests.data.conftest import image_folder

CLASSES = ("a", "b", "c")
PLAIN = {"mean": (0.0,) * 3, "std": (1 / 255,) * 3, "num_classes": 3, "channels": 3}  # normalising then changes nothing


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Drawn(Images):
    """Images of different sizes, made when asked for: a stand-in for files."""

    rows: tuple[int, ...]
    fails_at: int = -1
    dies_at: int = -1

    @property
    def channels(self) -> int:
        return 3

    @property
    def size(self) -> None:
        return None

    def decode(self, index: int) -> torch.Tensor:
        row = self.rows[index]
        if row == self.fails_at:
            raise DataError(f"image {row} is broken; delete it")
        if row == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        g = torch.Generator().manual_seed(row)
        return torch.randint(0, 256, (3, 20 + row % 7, 24 + row % 5), dtype=torch.uint8, generator=g)

    def select(self, index: torch.Tensor) -> Drawn:
        rows = tuple(self.rows[i] for i in index.tolist())
        return dataclasses.replace(self, rows=rows, labels=self.labels[index])


def drawn(n: int = 30, **changes: int) -> Drawn:
    return Drawn(labels=torch.arange(n) % 3, class_names=CLASSES, rows=tuple(range(n)), **changes)


def arrays(n: int = 50, soft: bool = False) -> ArrayImages:
    """Image i is filled with i: a batch tells which rows it holds."""
    array = torch.arange(n, dtype=torch.uint8).view(n, 1, 1, 1).expand(n, 3, 8, 8).contiguous()
    labels = torch.arange(n) % 3
    probabilities = torch.nn.functional.one_hot(labels, 3) * 0.7 + 0.1 if soft else None
    return ArrayImages(array=array, labels=labels, class_names=CLASSES, soft_labels=probabilities)


def plain(size: tuple[int, int] = (8, 8), **changes: object) -> Augment:
    return Augment(size_in=size, **PLAIN, **changes)  # type: ignore[arg-type]


FULL = {"crop": 2, "flip": True, "randaugment_ops": 1, "erasing": 0.5, "mixup": 0.8, "cutmix": 1.0}
SOURCES = {
    "resident": (arrays, plain(**FULL)),
    "streamed arrays": (arrays, plain(**(FULL | {"crop": "resized"}))),
    "decoded": (drawn, plain((16, 16), **FULL)),
    "decoded, resized crops": (drawn, plain((16, 16), **(FULL | {"crop": "resized"}))),
}


def loader(images: Images, augment: Augment, **changes: object) -> TrainLoader:
    return TrainLoader(images, None, augment, **({"seed": 5, "batch_size": 8} | changes))  # type: ignore[arg-type]


def equal(first: Iterable[Batch], second: Iterable[Batch]) -> bool:
    pairs = list(zip(first, second, strict=True))
    return all(torch.equal(a.images, b.images) and torch.equal(a.targets, b.targets) for a, b in pairs) and bool(pairs)


def rows_of(batch: Batch) -> list[int]:
    return batch.images[:, 0, 0, 0].round().int().tolist()


@pytest.mark.parametrize("source", SOURCES)
def test_two_processes_make_up_one(source):
    make, augment = SOURCES[source]
    whole = list(loader(make(), augment).epoch(3))
    ranks = [loader(make(), augment, rank=r, world_size=2).epoch(3) for r in (0, 1)]
    parts = list(zip(*ranks, strict=True))
    assert len(whole) == len(parts) == len(make()) // 8
    for one, two in zip(whole, parts, strict=True):
        assert torch.equal(one.images, torch.cat([part.images for part in two]))
        assert torch.equal(one.targets, torch.cat([part.targets for part in two]))


@pytest.mark.parametrize("source", SOURCES)
def test_start_skips_steps(source):
    make, augment = SOURCES[source]
    train = loader(make(), augment)
    assert equal(list(train.epoch(1))[2:], train.epoch(1, start=2))
    assert list(train.epoch(1, start=train.steps)) == []


@pytest.mark.parametrize("source", ["streamed arrays", "decoded", "decoded, resized crops"])
def test_workers_change_nothing(source):
    make, augment = SOURCES[source]
    alone, helped = (loader(make(), augment, workers=workers) for workers in (0, 2))
    assert equal(alone.epoch(0), helped.epoch(0))
    next(helped.epoch(1))  # left in the middle: the next epoch must not see what was still under way
    assert equal(alone.epoch(2), helped.epoch(2))


@pytest.mark.parametrize("source", SOURCES)
def test_epochs_and_seeds_differ(source):
    make, augment = SOURCES[source]
    train = loader(make(), augment)
    assert equal(train.epoch(1), train.epoch(1))
    assert not equal(train.epoch(1), train.epoch(2))
    assert not equal(train.epoch(1), loader(make(), augment, seed=6).epoch(1))


def test_resident_and_streamed_arrays_agree():
    augment = plain(**FULL)
    assert equal(loader(arrays(), augment).epoch(0), loader(arrays(), augment, in_memory=False).epoch(0))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_decoded_into_memory_or_streamed_the_pixels_are_the_same(interpolation):
    """Images of unlike sizes, among them some of the wanted size and some with only one side of it."""
    augment = plain((24, 24), crop=2, flip=True, interpolation=interpolation)
    held = in_memory(drawn(), size=24, interpolation=interpolation)
    assert equal(loader(held, augment).epoch(0), loader(drawn(), augment).epoch(0))
    kept, streamed = (EvalLoader(images, None, augment, batch_size=8) for images in (held, drawn()))
    assert equal(kept, streamed)


def test_every_image_once_but_for_what_fills_no_batch():
    train = loader(arrays(50), plain())
    rows = [row for batch in train.epoch(0) for row in rows_of(batch)]
    assert train.steps == len(train) == 6
    assert len(rows) == len(set(rows)) == 48
    batch = next(train.epoch(0))
    assert batch.targets.tolist() == [row % 3 for row in rows_of(batch)]
    assert batch.targets.dtype == torch.int64


def test_only_the_chosen_rows():
    indices = torch.tensor([40, 3, 17, 22])
    train = TrainLoader(arrays(), indices, plain(), seed=0, batch_size=4)
    batch = next(train.epoch(0))
    assert sorted(rows_of(batch)) == [3, 17, 22, 40]
    assert batch.targets.tolist() == [row % 3 for row in rows_of(batch)]
    evaluation = next(iter(EvalLoader(arrays(), indices, plain(), batch_size=4)))
    assert rows_of(evaluation) == evaluation.indices.tolist() == [40, 3, 17, 22]
    assert evaluation.labels.tolist() == [1, 0, 2, 1]


def test_soft_labels_are_the_targets():
    images = arrays(soft=True)
    assert images.soft_labels is not None
    batch = next(loader(images, plain()).epoch(0))
    assert torch.equal(batch.targets, images.soft_labels[rows_of(batch)])
    evaluation = next(iter(EvalLoader(images, None, plain(), batch_size=10)))
    assert torch.equal(evaluation.targets, images.soft_labels[:10])
    assert torch.equal(evaluation.labels, images.labels[:10])


@pytest.mark.parametrize(
    ("n", "world", "batch"), [(50, 1, 16), (50, 2, 16), (11, 2, 5), (3, 5, 4), (7, 1, 100), (12, 3, 4)]
)
def test_evaluation_covers_everything_in_order(n, world, batch):
    loaders = [EvalLoader(arrays(n), None, plain(), batch_size=batch, rank=r, world_size=world) for r in range(world)]
    assert len({len(one) for one in loaders}) == 1
    seen = []
    for one in loaders:
        batches = list(one)
        assert len(batches) == len(one)
        assert {len(b.images) for b in batches} == {one.batch_size}
        for b in batches:
            assert rows_of(b) == b.indices.tolist()
            seen += b.indices[: b.count].tolist()
    assert seen == list(range(n))


def test_evaluation_with_workers_and_decoding():
    augment = plain((16, 16))
    alone, helped = (list(EvalLoader(drawn(), None, augment, batch_size=8, workers=workers)) for workers in (0, 2))
    assert equal(alone, helped)
    assert torch.cat([b.indices[: b.count] for b in helped]).tolist() == list(range(30))
    subset = next(iter(EvalLoader(drawn(), torch.tensor([9, 4]), augment, batch_size=2)))
    assert torch.equal(subset.images[1], alone[0].images[4])
    assert subset.indices.tolist() == [9, 4]


def one(image: torch.Tensor) -> ArrayImages:
    return ArrayImages(array=image[None], labels=torch.zeros(1, dtype=torch.int64), class_names=CLASSES)


@pytest.mark.parametrize("size", [(300, 400), (400, 300)])
def test_the_centre_is_torchvisions(size):
    """Resized on the shorter side, then cut: in one step here, in two there (which rounds the longer side)."""
    g = torch.Generator().manual_seed(0)
    smooth = resize(torch.randint(0, 256, (1, 3, 9, 12), dtype=torch.uint8, generator=g), size)[0]
    picture = Image.fromarray(np.ascontiguousarray(smooth.permute(1, 2, 0).numpy()))
    for interpolation in ("bilinear", "bicubic"):
        ours = Decoder(one(smooth), (96, 96), interpolation).decode(Request(0, None))
        theirs = F.pil_to_tensor(
            F.center_crop(F.resize(picture, [96], interpolation=InterpolationMode(interpolation)), [96])
        )
        assert (ours.int() - theirs.int()).abs().max() <= 1
    decoded = EvalLoader(drawn(), None, plain((16, 16)), batch_size=4)
    assert next(iter(decoded)).images.shape == (4, 3, 16, 16)


def test_random_boxes_are_torchvisions_resized_crop():
    u = torch.rand(20_000, 4, generator=torch.Generator().manual_seed(0))
    boxes = np.array([random_box(tuple(row), (300, 400)) for row in u.tolist()])
    left, top, right, bottom = boxes.T
    assert boxes.min() >= 0
    assert right.max() <= 400
    assert bottom.max() <= 300
    for start, end, length in ((top, bottom, 300), (left, right, 400)):
        room = length - (end - start)
        assert (start[room > 20] / room[room > 20]).mean() == pytest.approx(0.5, abs=0.01)
    share, aspect = (right - left) * (bottom - top) / 120_000, (right - left) / (bottom - top)
    assert 0.075 < share.min() < 0.085
    assert share.max() > 0.97
    assert share[share < 0.5].mean() == pytest.approx(0.29, abs=0.01)  # uniform, where no side was cut
    assert np.log(aspect).min() == pytest.approx(np.log(3 / 4), abs=0.02)
    assert np.log(aspect)[share < 0.5].mean() == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize("channels", [1, 3])
def test_resized_crops_are_torchvisions(channels):
    g = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (channels, 60, 80), dtype=torch.uint8, generator=g)
    array = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
    picture = Image.fromarray(array if channels == 3 else array[:, :, 0])
    for row in torch.rand(10, 4, generator=g).tolist():
        x, y, x2, y2 = (int(side) for side in random_box(tuple(row), (60, 80)))
        theirs = F.pil_to_tensor(F.resized_crop(picture, y, x, y2 - y, x2 - x, [32, 24]))
        ours = Decoder(one(image), (32, 24), "bilinear").decode(Request(0, tuple(row)))
        # Pillow looks a little beyond a box where it shrinks, torchvision cuts first: only the rims may differ.
        assert torch.equal(ours[:, 2:-2, 2:-2], theirs[:, 2:-2, 2:-2])


def test_resized_crops_come_from_the_plan():
    augment = plain((16, 16), crop="resized")
    plan = draw_epoch(30, seed=5, epoch=2, num_draws=augment.num_draws)
    decoder = Decoder(drawn(), (16, 16), "bilinear")
    requests = [Request(int(row), tuple(u)) for row, u in zip(plan.order[:8], plan.draws[:8, :4].tolist(), strict=True)]
    expected = torch.stack([decoder.decode(request) for request in requests])
    assert torch.equal(next(loader(drawn(), augment).epoch(2)).images, augment.test(expected))


def test_the_global_generator_is_left_alone():
    state, of_numpy = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    list(loader(drawn(), plain((16, 16), **FULL)).epoch(0))
    assert torch.equal(state, torch.get_rng_state())
    assert np.array_equal(of_numpy, np.random.get_state()[1])  # noqa: NPY002


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_image_is_named_in_one_line(workers):
    train = loader(drawn(fails_at=17), plain((16, 16)), batch_size=10, workers=workers)
    with pytest.raises(DataError) as caught:
        list(train.epoch(0))
    assert str(caught.value) == "image 17 is broken; delete it"


@pytest.mark.parametrize("workers", [0, 1])
def test_an_image_that_cannot_be_resized_is_named_in_one_line(tmp_path, monkeypatch, workers):
    monkeypatch.setattr("calattn.data.decoding.centre_box", lambda size, _: (-1.0, 0.0, *size))
    images = data.load(image_folder(tmp_path, "train/a/x.png", "train/b/x.png", size=(20, 20)), "train")
    augment = Augment(channels=3, size_in=(8, 8), mean=(0.0,) * 3, std=(1.0,) * 3, num_classes=2)
    with pytest.raises(DataError, match=r"train/a/x\.png cannot be resized to 8 × 8 px \(.*offset") as caught:
        list(EvalLoader(images, None, augment, batch_size=2, workers=workers))
    assert "\n" not in str(caught.value)


def test_a_worker_that_dies_says_what_to_try():
    """Over the first image of all: torch tells of it wherever this process is, which until then can only be in the loader."""
    first = int(draw_epoch(30, seed=5, epoch=0, num_draws=plain((16, 16)).num_draws).order[0])
    train = loader(drawn(dies_at=first), plain((16, 16)), batch_size=10, workers=2)
    with pytest.raises(DataError, match=r"2 processes that decode images died .* use fewer workers") as caught:
        list(train.epoch(0))
    assert "\n" not in str(caught.value)


def test_input_size():
    assert input_size(arrays(), 224) == input_size(arrays(), None) == (8, 8)
    assert input_size(drawn(), 224) == (224, 224)
    with pytest.raises(DataError, match=r"differ in size; set the side"):
        input_size(drawn(), None)


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 51}, "batch_size is 51, more than the 50 training images"),
        ({"batch_size": 7, "world_size": 2}, "batch_size is 7, which 2 processes cannot share equally"),
        (
            {"batch_size": 6, "world_size": 2, "augment": plain(mixup=1.0)},
            "leaves 3 images for each process.*must be even",
        ),
        ({"rank": 2, "world_size": 2}, "rank=2 of world_size=2"),
        ({"batch_size": 0}, "batch_size must be a positive integer, got 0"),
        ({"augment": plain((9, 9))}, r"the images are \(8, 8\), the augmentation is for \(9, 9\)"),
        ({"augment": dataclasses.replace(plain(), num_classes=4)}, "3 classes, the augmentation is for 4"),
        (
            {"augment": dataclasses.replace(plain(), channels=1, mean=(0.0,), std=(1.0,))},
            "3 channels, the augmentation is for 1",
        ),
        ({"indices": torch.tensor([0, 50])}, r"indices must be in \[0, 49\], got 50"),
        ({"indices": torch.tensor([3, -1])}, r"indices must be in \[0, 49\], got -1"),
        ({"indices": torch.tensor([0.5])}, "row numbers, got torch.float32"),
        ({"workers": -1, "in_memory": False}, "workers must be ≥ 0, got -1"),
    ],
)
def test_arguments_are_checked(changes, message):
    arguments = {"indices": None, "augment": plain(), "seed": 0, "batch_size": 8} | changes
    with pytest.raises(ValueError, match=message):
        TrainLoader(arrays(), arguments.pop("indices"), arguments.pop("augment"), **arguments)


def test_start_outside_the_epoch():
    with pytest.raises(ValueError, match="start=7 is outside the epoch's 6 steps"):
        loader(arrays(), plain()).epoch(0, start=7)
