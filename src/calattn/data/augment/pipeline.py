"""The augmentation of a batch: what happens to uint8 images between the data set and the network."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Shaped, UInt8
from torch import Tensor

from calattn import checks
from calattn.data.augment.distortions import Magnitude, RandAugment, Shifts
from calattn.data.augment.geometry import Bytes, box_mask, crop
from calattn.data.augment.mixing import Mixing
from calattn.data.images import upload
from calattn.data.resize import Interpolation, resized_levels

# The uniform numbers of a sample, in this order; those of RandAugment or of the shifts follow. Every group has its place whether
# it is used or not, so that switching one on leaves the others' numbers as they were.
CROP, FLIP, ERASING, MIXING = slice(0, 4), slice(4, 5), slice(5, 10), slice(10, 14)
FIXED_DRAWS = 14

ERASED_SHARE = (0.02, 0.33)
ERASED_ASPECT = (0.3, 3.3)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Augment:
    """Crop → flip → RandAugment or shifts → erasing, on uint8 at `size_in`; resize to `size_out`; normalise; mixup or cutmix.

    `train` takes its random numbers as an argument: rows of an epoch's plan made with `num_draws` and `derive`. Nothing in it
    waits for the device, and the result has the same bits on every device. `crop` is the black padding of a random crop;
    "resized" (a random part of the image, resized) happens where images are decoded, see `loading`.

    >>> augment = Augment(channels=1, size_in=(8, 8), mean=(0.5,), std=(0.5,), num_classes=10)
    >>> augment.test(torch.full((1, 1, 8, 8), 255, dtype=torch.uint8)).unique().tolist()
    [1.0]
    """

    channels: int
    size_in: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    num_classes: int
    size_out: int | None = None
    interpolation: Interpolation = "bilinear"
    crop: int | Literal["resized"] = 0
    flip: bool = False
    randaugment_ops: int = 0
    randaugment_magnitude: Magnitude = 9.0
    shifts: bool = False
    erasing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            if len(getattr(self, name)) != self.channels:
                raise ValueError(f"{name} has {len(getattr(self, name))} entries for {self.channels} channels")
        if not all(std > 0 for std in self.std):
            raise ValueError(f"std must be positive, got {self.std}")
        if self.crop != "resized" and (isinstance(self.crop, str) or self.crop < 0):
            raise ValueError(f'crop must be a number of pixels ≥ 0 or "resized", got {self.crop!r}')
        if self.interpolation not in ("bilinear", "bicubic"):
            raise ValueError(f"interpolation must be bilinear or bicubic, got {self.interpolation!r}")
        checks.in_unit_interval(self.erasing, "erasing")
        _ = self._mixing, self._distortion  # their own checks, now rather than in the first step

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of what the network sees."""
        return self.size_in if self.size_out is None else (self.size_out, self.size_out)

    @property
    def mixes(self) -> bool:
        return self._mixing is not None

    @property
    def num_draws(self) -> int:
        return FIXED_DRAWS + (0 if self._distortion is None else self._distortion.num_draws)

    @functools.cached_property
    def _mixing(self) -> Mixing | None:
        if not self.mixup and not self.cutmix:
            return None
        return Mixing(mixup=self.mixup, cutmix=self.cutmix, num_classes=self.num_classes, size=self.size)

    @functools.cached_property
    def _distortion(self) -> RandAugment | Shifts | None:
        if self.shifts:
            if self.randaugment_ops:
                raise ValueError("shifts and randaugment_ops exclude each other; set one")
            return Shifts(size=self.size_in)
        if self.randaugment_ops == 0:
            return None
        return RandAugment(num_ops=self.randaugment_ops, magnitude=self.randaugment_magnitude, size=self.size_in)

    def derive(self, draws: Float[Tensor, "n k"]) -> Float[Tensor, "n m"]:
        """What `train` reads, from uniform numbers [n, num_draws]: offsets, codes, boxes and weights, on the CPU.

        Columns: crop (4), mirrored (1), box of the erasing (4), mixing (6), one code per operation of RandAugment (or `Shifts`).
        """
        if draws.shape[1] != self.num_draws:
            raise ValueError(f"draws must have {self.num_draws} columns (num_draws), got {draws.shape[1]}")
        offsets = draws[:, CROP]
        if self.crop != "resized":
            offsets = (offsets.double() * (2 * self.crop + 1)).floor().float()
        mirrored = (draws[:, FLIP] < (0.5 if self.flip else 0.0)).float()
        mixing = draws.new_zeros(len(draws), 6) if self._mixing is None else self._mixing.derive(draws[:, MIXING])
        erased = erased_boxes(draws[:, ERASING], self.size_in, self.erasing)
        more = [] if self._distortion is None else [self._distortion.derive(draws[:, FIXED_DRAWS:])]
        return torch.cat([offsets, mirrored, erased, mixing, *more], dim=1)

    @torch.no_grad()
    def train(
        self, images: Bytes, targets: Shaped[Tensor, "b ..."], draws: Float[Tensor, "b m"]
    ) -> tuple[Float[Tensor, "b c H W"], Shaped[Tensor, "b ..."]]:
        """Augmented float32 images and their targets: as given, or float32 [b, classes] where images are mixed."""
        self._check(images)
        if self.flip or (self.crop != "resized" and self.crop > 0):
            padding = 0 if self.crop == "resized" else self.crop
            offset = draws[:, :2].int() if padding else torch.zeros_like(draws[:, :2], dtype=torch.int32)
            images = crop(images, offset[:, 0], offset[:, 1], draws[:, 4] > 0, padding=padding)
        if self._distortion is not None:
            images = self._distortion(images, draws[:, 15:])
        if self.erasing:
            inside = box_mask(draws[:, 5:9], height=self.size_in[0], width=self.size_in[1])
            images = torch.where(inside, self._constants(images.device)[2], images)
        normal = self._normalised(images)
        return (normal, targets) if self._mixing is None else self._mixing(normal, targets, draws[:, 9:15])

    @torch.no_grad()
    def test(self, images: Bytes) -> Float[Tensor, "b c H W"]:
        """Resized and normalised, nothing else."""
        self._check(images)
        return self._normalised(images)

    def _normalised(self, images: Tensor) -> Tensor:
        """(v − 255·mean) · 1 / (255·std): a difference, then a product, which no fused multiply-add can merge."""
        shift, scale, _ = self._constants(images.device)
        levels = resized_levels(images, self.size, interpolation=self.interpolation)
        return levels.sub_(shift).mul_(scale)

    def _constants(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        return _constants(self.mean, self.std, device)

    def _check(self, images: Tensor) -> None:
        if images.dtype != torch.uint8 or images.ndim != 4 or tuple(images.shape[1:]) != (self.channels, *self.size_in):
            wanted = [self.channels, *self.size_in]
            raise ValueError(f"images must be uint8 [b, {str(wanted)[1:]}, got {images.dtype} {list(images.shape)}")


@functools.lru_cache(maxsize=32)
def _constants(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device
) -> tuple[Float[Tensor, "c 1 1"], Float[Tensor, "c 1 1"], UInt8[Tensor, "c 1 1"]]:
    """255·mean, 1 / (255·std) and the mean colour as a pixel, rounded once from float64."""
    shift = 255 * torch.tensor(mean, dtype=torch.float64).view(-1, 1, 1)
    scale = 1 / (255 * torch.tensor(std, dtype=torch.float64).view(-1, 1, 1))
    colour = shift.round().clamp(0, 255).to(torch.uint8)
    return upload(shift.float(), device), upload(scale.float(), device), upload(colour, device)


def erased_boxes(draws: Float[Tensor, "n 5"], size: tuple[int, int], probability: float) -> Float[Tensor, "n 4"]:
    """(top, left, height, width) of 2 to 33 % of the area, log-uniform in aspect; empty with probability 1 − `probability`.

    A side longer than the image's is cut to it.
    """
    if probability == 0:
        return draws.new_zeros(len(draws), 4)
    happens, share, aspect, y, x = draws.double().numpy().T
    area = (ERASED_SHARE[0] + (ERASED_SHARE[1] - ERASED_SHARE[0]) * share) * size[0] * size[1]
    low, high = math.log(ERASED_ASPECT[0]), math.log(ERASED_ASPECT[1])
    ratio = np.exp(low + (high - low) * aspect)
    erased = happens < probability
    sides = []
    for length, wanted, place in ((size[0], area * ratio, y), (size[1], area / ratio, x)):
        side = np.minimum(np.rint(np.sqrt(wanted)), length)
        sides.append((np.floor(place * (length - side + 1)), np.where(erased, side, 0.0)))
    (top, tall), (left, wide) = sides
    return torch.from_numpy(np.stack([top, left, tall, wide], axis=1).astype(np.float32))
