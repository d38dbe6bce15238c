"""Corruptions by name, `corrupt`, which applies one to a batch, and the random numbers that it draws."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float, UInt8
from scipy.special import ndtri
from torch import Tensor

from calattn import checks
from calattn.data.corruptions.filters import Pixels
from calattn.data.images import DataError
from calattn.registry import Registry
from calattn.types import row_blocks

SEVERITIES = (1, 2, 3, 4, 5)
Bytes = UInt8[Tensor, "n c h w"]

# float64 values of a block: small enough to stay in cache between passes, large enough to hide Python's overhead.
_BLOCK = 1 << 19
_NUMBERS_PER_COUNTER = 8  # a step of Philox's counter gives four 64-bit words, each two numbers


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Draws:
    """Numbers for the images `first` … `first + count − 1` of a set.

    Every (seed, stream, purpose) is a Philox stream of its own, cut into stretches of equal length: image i has the i-th. So an
    image's numbers do not depend on which other images are corrupted with it. Numbers come from the raw bits, whose order numpy
    promises to keep, and not from its distributions, which it may change.

    >>> both, second = Draws(seed=1, stream="fog", first=0, count=2), Draws(seed=1, stream="fog", first=1, count=1)
    >>> bool((both.uniform("angle", 3)[1] == second.uniform("angle", 3)[0]).all())
    True
    """

    seed: int
    stream: str
    first: int
    count: int

    def uniform(self, purpose: str, *shape: int) -> Float[Tensor, "count ..."]:
        """Numbers in (0, 1), never the ends, as float64 [count, *shape]."""
        wanted = math.prod(shape)
        counters = -(-wanted // _NUMBERS_PER_COUNTER)
        key = np.array([self.seed, _number_of(f"{self.stream}/{purpose}")], dtype=np.uint64)
        philox = np.random.Philox(key=key)
        philox.advance(self.first * counters)
        words = philox.random_raw(self.count * counters * _NUMBERS_PER_COUNTER // 2)
        halves = words.astype("<u8", copy=False).view("<u4").reshape(self.count, -1)[:, :wanted]
        return torch.from_numpy((halves + 0.5) * 2.0**-32).reshape(self.count, *shape)

    def between(self, low: float, high: float, purpose: str, *shape: int) -> Float[Tensor, "count ..."]:
        return low + (high - low) * self.uniform(purpose, *shape)

    def normal(self, purpose: str, *shape: int) -> Float[Tensor, "count ..."]:
        """Standard normal numbers, by the inverse of the distribution function: one uniform number each."""
        return torch.from_numpy(ndtri(self.uniform(purpose, *shape).numpy()))

    def whole(self, below: int, purpose: str, *shape: int) -> Tensor:
        """Integers in [0, below)."""
        return (self.uniform(purpose, *shape) * below).long()


def _number_of(purpose: str) -> int:
    return int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=8).digest(), "little")


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Corruption:
    """What a corruption does, and its constants at severity 1 … 5 (those of Hendrycks & Dietterich for 32 × 32 images).

    `apply(images, draws, **constants)` keeps the shape of the images; `corrupt` clips and rounds.
    """

    name: str
    title: str
    levels: tuple[dict[str, Any], ...]
    apply: Callable[..., Pixels]

    def __post_init__(self) -> None:
        assert len(self.levels) == len(SEVERITIES), self.name


CORRUPTIONS: Registry[Corruption] = Registry("corruption")


def corruption(title: str, **constants: tuple[Any, ...]) -> Callable[[Any], Any]:
    """Register a function under its own name; each constant has five values, one per severity."""

    def register(function: Any) -> Any:
        levels = tuple(dict(zip(constants, values, strict=True)) for values in zip(*constants.values(), strict=True))
        name = function.__name__
        CORRUPTIONS.add(name, Corruption(name=name, title=title, levels=levels, apply=function))
        return function

    return register


def corrupt(images: Bytes, name: str, severity: int, *, generator: torch.Generator, offset: int = 0) -> Bytes:
    """The images under one corruption at severity 1 … 5.

    One number is taken from `generator`; with the corruption's name, the severity and an image's number in the set it decides
    all that is random about that image. `offset` is the number of the first image given, so a set can be corrupted in parts:

    >>> images = torch.full((4, 3, 32, 32), 128, dtype=torch.uint8)
    >>> seed = lambda: torch.Generator().manual_seed(0)
    >>> whole = corrupt(images, "fog", 5, generator=seed())
    >>> end = corrupt(images[3:], "fog", 5, generator=seed(), offset=3)
    >>> torch.equal(whole[3:], end)
    True
    """
    chosen = CORRUPTIONS[name]
    if isinstance(severity, bool) or not isinstance(severity, int | np.integer) or severity not in SEVERITIES:
        raise ValueError(f"severity must be 1, 2, 3, 4 or 5, got {severity!r}")
    _check_images(images)
    if isinstance(offset, bool) or not isinstance(offset, int | np.integer) or offset < 0:
        raise ValueError(f"offset must be the number of the first image in its set, 0 or more, got {offset!r}")
    generator = checks.generator(generator)
    seed = int(torch.randint(2**63 - 1, (), generator=generator, device=generator.device))
    corrupted = torch.empty(images.shape, dtype=torch.uint8)
    stream = f"{name}-{severity}"
    for rows in row_blocks(len(images), images[0].numel() if len(images) else 1, _BLOCK):
        draws = Draws(seed=seed, stream=stream, first=int(offset) + rows.start, count=rows.stop - rows.start)
        corrupted[rows] = to_bytes(
            chosen.apply(images[rows].cpu().double() / 255, draws, **chosen.levels[severity - 1])
        )
    return corrupted.to(images.device)


def to_bytes(images: Pixels) -> Bytes:
    """[0, 1] to 0 … 255, to the nearest.

    Averages of bytes often fall on an exact half, where the last bit of a sum would decide, and that bit may depend on the size
    of the batch and on the machine. 1e-6 moves the decision to where no averages fall.
    """
    return (images.clamp(0, 1) * 255 + (0.5 + 1e-6)).to(torch.uint8)


def _check_images(images: Tensor) -> None:
    if not isinstance(images, Tensor) or images.dtype != torch.uint8:
        got = images.dtype if isinstance(images, Tensor) else type(images).__name__
        raise DataError(f"images must be a uint8 tensor with values 0 … 255, got {got}")
    if images.ndim != 4 or images.shape[1] not in (1, 3) or 0 in images.shape[2:]:
        raise DataError(f"images must have shape [n, 1 or 3, h, w], got {list(images.shape)}")
