"""An epoch: in which order the samples come, and every random number they will use."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from calattn import checks


@dataclasses.dataclass(frozen=True, eq=False)
class Epoch:
    """Position p of the epoch trains on sample `order[p]` with the random numbers `draws[p]`.

    It is made on the CPU before the epoch begins, so nothing random depends on the device, the division into batches, the
    number of processes or the timing of workers.
    """

    order: Int[Tensor, " n"]
    draws: Float[Tensor, "n k"]

    def __len__(self) -> int:
        return len(self.order)


def draw_epoch(
    n: int,
    *,
    seed: int,
    epoch: int,
    num_draws: int,
    derive: Callable[[Float[Tensor, "n k"]], Float[Tensor, "n m"]] | None = None,
) -> Epoch:
    """A plan that follows from (seed, epoch) alone; `draws` are uniform in [0, 1), or what `derive` makes of them.

    `derive` maps the uniform columns to what the devices will use (offsets, boxes, Beta-distributed weights): transcendental
    functions differ in the last bit between processors, so they are evaluated here, once, on the CPU.

    >>> plan = draw_epoch(4, seed=0, epoch=0, num_draws=2)
    >>> sorted(plan.order.tolist()), tuple(plan.draws.shape)
    ([0, 1, 2, 3], (4, 2))
    """
    checks.positive_int(n, "n")
    generator = torch.Generator().manual_seed(epoch_seed(seed, epoch))
    order = torch.randperm(n, generator=generator)
    # Column by column: column j is then the same however many columns follow, so that switching on mixup, say, leaves the crops
    # of a run as they were.
    draws = torch.rand(num_draws, n, generator=generator).T.contiguous()
    return Epoch(order, draws if derive is None else derive(draws).contiguous())


def epoch_seed(seed: int, epoch: int) -> int:
    """63 bits of a hash: seeds and epochs next to each other give streams that have nothing in common."""
    digest = hashlib.sha256(f"calattn epoch plan: seed {seed}, epoch {epoch}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
