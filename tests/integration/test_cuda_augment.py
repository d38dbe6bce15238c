"""Batches on a GPU: the bits of the CPU's, and nothing that waits. Skipped where there is no GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch

from calattn.data.augment.distortions import OPERATIONS, RandAugment
from calattn.data.augment.pipeline import Augment
from calattn.data.images import ArrayImages
from calattn.data.loading import Batch, EvalLoader, TrainLoader

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

PLAIN = Augment(
    channels=3,
    size_in=(32, 32),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.247, 0.2435, 0.2616),
    num_classes=10,
    crop=4,
    flip=True,
)
ALL = dataclasses.replace(PLAIN, randaugment_ops=2, erasing=0.5, mixup=0.8, cutmix=1.0)
AUGMENTS = {
    "crop and flip": PLAIN,
    "everything": ALL,
    "everything at 224": dataclasses.replace(ALL, size_out=224),
    "bicubic at 224": dataclasses.replace(PLAIN, size_out=224, interpolation="bicubic"),
    "shrunk": dataclasses.replace(PLAIN, size_out=20, interpolation="bicubic"),
}


def images(n: int = 256) -> ArrayImages:
    g = torch.Generator().manual_seed(0)
    array = torch.randint(0, 256, (n, 3, 32, 32), dtype=torch.uint8, generator=g)
    labels = torch.randint(0, 10, (n,), generator=g)
    return ArrayImages(array=array, labels=labels, class_names=tuple("0123456789"))


def same(cpu: Iterator[Batch], gpu: Iterator[Batch]) -> None:
    for one, other in zip(cpu, gpu, strict=True):
        assert other.images.is_cuda
        assert torch.equal(one.images, other.images.cpu())
        assert torch.equal(one.targets, other.targets.cpu())


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("name", AUGMENTS)
def test_the_bits_of_the_cpu(name, tf32):
    before = torch.get_float32_matmul_precision()
    cpu, gpu = (TrainLoader(images(), None, AUGMENTS[name], seed=1, batch_size=64, device=d) for d in ("cpu", "cuda"))
    try:
        expected = list(cpu.epoch(0))
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            same(iter(expected), gpu.epoch(0))
    finally:
        torch.set_float32_matmul_precision(before)


def test_every_operation():
    batch = images(64).array
    for magnitude in (3.0, 9.0):
        augment = RandAugment(num_ops=1, magnitude=magnitude, size=(32, 32))
        for code in range(2 * len(OPERATIONS)):
            codes = torch.full((64,), code)
            assert torch.equal(augment.apply(batch, codes), augment.apply(batch.cuda(), codes.cuda()).cpu()), (
                OPERATIONS[code // 2]
            )


def test_evaluation():
    same(
        *(
            iter(EvalLoader(images(), None, AUGMENTS["bicubic at 224"], batch_size=100, device=d))
            for d in ("cpu", "cuda")
        )
    )


@pytest.mark.parametrize("deterministic", [False, True])
def test_nothing_waits_for_the_device(deterministic):
    """Not even in the first step or where the tables are made: sizes here are new, so no cache holds them."""
    side = 96 + deterministic
    augment = dataclasses.replace(ALL, size_out=side, randaugment_magnitude=1.0 + deterministic)
    train = TrainLoader(images(), None, augment, seed=1, batch_size=64, device="cuda")
    evaluation = EvalLoader(
        images(), None, dataclasses.replace(augment, size_out=side + 2), batch_size=100, device="cuda"
    )
    torch.use_deterministic_algorithms(deterministic)
    torch.cuda.set_sync_debug_mode("error")
    try:
        batches = [*train.epoch(0), *train.epoch(1, start=2), *evaluation]
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.use_deterministic_algorithms(False)
    assert len(batches) == 4 + 2 + 3


def test_streamed_images_have_the_same_bits():
    augment = dataclasses.replace(ALL, crop="resized")
    cpu, gpu = (
        TrainLoader(images(), None, augment, seed=1, batch_size=64, device=d, workers=w)
        for d, w in (("cpu", 0), ("cuda", 2))
    )
    same(cpu.epoch(0), gpu.epoch(0))
