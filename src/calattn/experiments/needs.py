"""The data sets that cells need, and which of them are not there."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from calattn.data import describe
from calattn.data.sources.datasets import get_command, remedy
from calattn.data.sources.download import is_here
from calattn.experiments.cells import Cell, ScaleName, spec_of
from calattn.experiments.order import CIFARS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Missing:
    """A data set that is not there. `command` gets it, unless it needs an account: then `manual` says what to do.

    Without it `training` cells cannot be trained, and `ood` others have no AUROC against its images.
    """

    name: str
    command: str | None
    manual: str | None
    training: int
    ood: int

    @property
    def text(self) -> str:
        uses = [f"{self.training} cells train on it"] if self.training else []
        uses += [f"{self.ood} are judged against foreign images from it"] if self.ood else []
        return f"{self.name} is not there ({', '.join(uses)}): {self.command or self.manual}"


def missing_data(cells: Iterable[Cell], scale: ScaleName, *, root: Path | None = None) -> list[Missing]:
    """What must be fetched before these cells are run, in the order of their need."""
    # CIFAR-10-C's own files, or CIFAR-10, from which the corrupted images are made.
    sources = ("svhn", "cifar10_c" if is_here("cifar10_c", root=root) else "cifar10")
    training: Counter[str] = Counter()
    foreign: Counter[str] = Counter()
    for cell in cells:
        own = spec_of(cell, scale).data.name
        training[own] += 1
        if scale != "smoke" and cell.dataset in CIFARS:
            foreign.update(name for name in sources if name != own)
    found = []
    for name in [*training, *(name for name in foreign if name not in training)]:
        dataset = describe(name)
        if not is_here(name, root=root):
            missing = Missing(
                name=name,
                command=None if dataset.manual else get_command(dataset, root),
                manual=remedy(dataset, root) if dataset.manual else None,
                training=training[name],
                ood=foreign[name],
            )
            found.append(missing)
    return found
