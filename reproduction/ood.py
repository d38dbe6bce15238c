"""Out-of-distribution sets of a cell, how uncertain a run's networks are about their images, and how well that separates them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import json
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from calattn import data
from calattn.data.corruptions import CORRUPTIONS, corrupt
from calattn.files.atomic import atomic_write
from calattn.metrics.sources import columns_in
from calattn.runs import build
from calattn.runs.folder import RunFolder
from calattn.runs.interface import interface_of
from calattn.runs.predict import ImageSet, Predictor, check_same_split
from calattn.runs.runtime import Runtime
from calattn.types import Predictions
from reproduction.cells import CIFARS, GridCell, ScaleName

SEVERITY = 5
CLS_NORM = "cls_norm"
FILE = "ood.safetensors"  # in the run folder: its twin's analysis needs them after the checkpoints are gone
_Z95 = 1.959963984540054
_SMOKE_CORRUPTIONS = ("gaussian_noise", "contrast", "pixelate")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OodSet:
    """Foreign images. `corruption`: one of the CIFAR-10-C kind; `of_test`: copies of the cell's own test images, in order."""

    name: str
    title: str
    images: data.ArrayImages
    corruption: bool = False
    of_test: bool = False

    @property
    def about(self) -> dict[str, Any]:
        return {"images": len(self.images)} | {name: getattr(self, name) for name in ("title", "corruption", "of_test")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class OodScores:
    """Uncertainty (odds) by rule and set, "test" among them; what the sets are, and why some are missing.

    `epochs`: how far the run was trained that they are of.
    """

    scores: dict[str, dict[str, Float[Tensor, " m"]]]
    sets: dict[str, dict[str, Any]]
    missing: dict[str, str]
    epochs: int

    def separations(self, rule: str) -> dict[str, Separation]:
        """By set; "cifar10_c" is the mean over the corruptions."""
        found = self.scores[rule]

        def of(names: list[str]) -> Separation:
            same = all(self.sets[name]["of_test"] for name in names)
            return Separation.between(found["test"], [found[name] for name in names], same_images=same)

        corruptions = [name for name, described in self.sets.items() if described["corruption"]]
        parts = {name: of([name]) for name in self.sets}
        return {**parts, "cifar10_c": of(corruptions)} if corruptions else parts

    def save(self, path: Path) -> None:
        tensors = {f"{rule}/{name}": values for rule, found in self.scores.items() for name, values in found.items()}
        about = {"sets": json.dumps(self.sets), "missing": json.dumps(self.missing), "epochs": json.dumps(self.epochs)}
        with atomic_write(path) as partial:
            save_file({name: values.float().contiguous() for name, values in tensors.items()}, partial, about)

    @classmethod
    def load(cls, folder: RunFolder) -> OodScores | None:
        """What was saved in the run's folder; None where there is nothing whole, or it is of an earlier epoch."""
        path = folder.path / FILE
        scores: dict[str, dict[str, Tensor]] = {}
        try:
            with safe_open(path, framework="pt") as file:
                about = file.metadata()
                for key in file.keys():  # noqa: SIM118  (not a mapping)
                    rule, _, name = key.partition("/")
                    scores.setdefault(rule, {})[name] = file.get_tensor(key)
        except (FileNotFoundError, SafetensorError):
            return None
        sets, missing, epochs = (json.loads(about[name]) for name in ("sets", "missing", "epochs"))
        if epochs != folder.summary()["epochs"]:
            return None
        return cls(scores=scores, sets=sets, missing=missing, epochs=epochs)


def score_run(
    folder: RunFolder,
    cell: GridCell,
    scale: ScaleName,
    *,
    rules: Iterable[str],
    runtime: Runtime,
    cache: Path | None = None,
) -> OodScores:
    """The scores of a run's networks on the cell's sets, kept in the run folder. The network is built once a rule.

    Scores that are there are used again, unless some set was missing then and the checkpoints are still there to try.
    """
    rules = list(rules)
    before = OodScores.load(folder)
    again = any(folder.checkpoints_path.glob("state-*.safetensors"))
    if before is not None and set(rules) <= before.scores.keys() and not (before.missing and again):
        return before
    spec = folder.spec()
    fabric = runtime.fabric(runtime.usable_precision(spec.train.precision))
    found = build.load_data(spec, root=runtime.data_root)
    check_same_split(folder, found)
    predictor = Predictor(folder=folder, spec=spec, interface=interface_of(spec, found), fabric=fabric, runtime=runtime)
    assert found.test is not None  # of every data set of the grid
    sets, missing = ood_sets(cell, scale, found.test, root=runtime.data_root, cache=cache)
    scores: dict[str, dict[str, Tensor]] = {}
    for rule in rules:
        scores[rule] = {"test": uncertainty(folder.predictions("test", rule))}
        if not sets:
            continue
        network = predictor.network(rule)
        for each in sets:
            made = predictor.predict(network, ImageSet(name=each.name, images=each.images))
            scores[rule][each.name] = uncertainty(made)
        norms = cls_norms(network, predictor, found.test)
        scores[rule] |= {} if norms is None else {CLS_NORM: norms}
    epochs = int(folder.summary()["epochs"])
    result = OodScores(scores=scores, sets={each.name: each.about for each in sets}, missing=missing, epochs=epochs)
    result.save(folder.path / FILE)
    return result


def cls_norms(network: nn.Module, predictor: Predictor, images: data.Images) -> Float[Tensor, " n"] | None:
    """‖CLS‖ before the last LayerNorm, of every image; None for a network without a CLS token."""
    backbone = next((each for each in network.modules() if getattr(each, "cls_token", None) is not None), None)
    norm = getattr(backbone, "norm", None)
    if not isinstance(norm, nn.LayerNorm):
        return None
    seen: list[Tensor] = []
    hook = norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][:, 0].float().norm(dim=1).cpu()))
    try:
        predictor.predict(network, ImageSet(name="test", images=images))
    finally:
        hook.remove()
    return torch.cat(seen)[: len(images)]  # the last batch is padded


def ood_sets(
    cell: GridCell, scale: ScaleName, test: data.Images, *, root: Path | None, cache: Path | None = None
) -> tuple[list[OodSet], dict[str, str]]:
    """The sets of a cell, and the missing ones by name with the reason. Cells of other data sets than CIFAR have none."""
    if scale == "smoke":
        assert isinstance(test, data.ArrayImages)
        return _smoke_sets(test), {}
    if cell.dataset not in CIFARS:
        return [], {}
    sets, missing = [], {}
    try:
        sets.append(_svhn(root))
    except data.DataError as error:
        missing["svhn"] = str(error)
    try:
        corrupted = _cifar10_c(root, cache)
        sets += [dataclasses.replace(each, of_test=cell.dataset == "cifar10") for each in corrupted]
    except data.DataError as error:
        missing["cifar10_c"] = str(error)
    return sets, missing


def prepare(cells: Iterable[GridCell], scale: ScaleName, *, root: Path | None, cache: Path) -> None:
    """Makes the corrupted images once for several processes, which map the files in `cache` instead of making their own."""
    if scale != "smoke" and any(cell.dataset in CIFARS for cell in cells):
        with contextlib.suppress(data.DataError):  # each cell says so itself
            _cifar10_c(root, cache)


def _foreign(array: UInt8[Tensor, "n c h w"]) -> data.ArrayImages:
    """Images whose labels mean nothing to the network."""
    labels = torch.zeros(len(array), dtype=torch.int64)
    return data.ArrayImages(array=array, labels=labels, class_names=("foreign", "-"))


def _smoke_sets(test: data.ArrayImages) -> list[OodSet]:
    inverted = _foreign(255 - test.array)
    sets = [OodSet(name="svhn", title="digits, inverted, in SVHN's place", images=inverted, of_test=True)]
    for name in _SMOKE_CORRUPTIONS:
        images = _foreign(corrupt(test.array, name, SEVERITY, generator=torch.Generator().manual_seed(0)))
        title = f"digits, {name} at severity {SEVERITY}"
        sets.append(OodSet(name=name, title=title, images=images, corruption=True, of_test=True))
    return sets


@functools.lru_cache(maxsize=1)
def _svhn(root: Path | None) -> OodSet:
    images = data.in_memory(data.load("svhn", "test", root=root))
    return OodSet(name="svhn", title=data.describe("svhn").title, images=_foreign(images.array))


@functools.lru_cache(maxsize=1)
def _cifar10_c(root: Path | None, cache: Path | None) -> tuple[OodSet, ...]:
    """All fifteen; making them takes 80 s of one core, so all cores share it, and a process does it once."""
    if cache is not None and (cache / "titles.json").is_file():
        titles = json.loads((cache / "titles.json").read_text(encoding="utf-8"))
        # Mapped, so that processes share the pages; copy-on-write, because torch warns of arrays that it may not write.
        arrays = {name: torch.from_numpy(np.load(cache / f"{name}.npy", mmap_mode="c")) for name in titles}
    else:
        with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            load = functools.partial(data.load, "cifar10_c", root=root)
            images = list(pool.map(load, [f"{name}-{SEVERITY}" for name in CORRUPTIONS]))
        loaded = dict(zip(CORRUPTIONS, images, strict=True))
        titles = {name: getattr(each, "title", f"CIFAR-10-C {name}-{SEVERITY}") for name, each in loaded.items()}
        arrays = {name: data.in_memory(each).array for name, each in loaded.items()}
        if cache is not None:
            for name, array in arrays.items():
                np.save(cache / f"{name}.npy", array.numpy())
            (cache / "titles.json").write_text(json.dumps(titles), encoding="utf-8")
    return tuple(
        OodSet(name=name, title=titles[name], images=_foreign(arrays[name]), corruption=True) for name in titles
    )


# --- separation --------------------------------------------------------------------------------------------------------


def uncertainty(predictions: Predictions) -> Float[Tensor, " n"]:
    """The odds Σ_{k≠top} p_k / p_top: ordered as 1 − max p is, but distinct where probabilities round to 1."""
    return columns_in(predictions).odds.cpu()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Separation:
    """P(a foreign image is the more uncertain one), ties counting half, as means of placements (DeLong et al. 1988).

    `known[i]` is the share of foreign images above known image i, `foreign[j]` the share of known images below foreign image
    j. With `same_images`, foreign image i is a corrupted copy of known image i, and the two vary together.

    >>> low, high = torch.tensor([0.1, 0.2]), torch.tensor([0.15, 0.3])
    >>> Separation.between(low, [high]).auroc
    0.75
    """

    known: Float[Tensor, " n"]
    foreign: Float[Tensor, " m"]
    same_images: bool = False

    @classmethod
    def between(
        cls, known: Float[Tensor, " n"], foreign: Sequence[Float[Tensor, " m"]], *, same_images: bool = False
    ) -> Separation:
        """Of one foreign set, or the mean over several that show the same images (fifteen corruptions)."""
        placements = [(1 - _share_below(each, known), _share_below(known, each)) for each in foreign]
        above, below = (torch.stack(column).mean(dim=0) for column in zip(*placements, strict=True))
        return cls(known=above, foreign=below, same_images=same_images)

    @property
    def auroc(self) -> float:
        return float(self.known.mean())

    @property
    def interval(self) -> tuple[float, float]:
        reach = _Z95 * self._error()
        return max(0.0, self.auroc - reach), min(1.0, self.auroc + reach)

    def minus(self, other: Separation) -> dict[str, float]:
        """This AUROC minus that of another network on the same images: difference, 95 % interval, p-value (normal)."""
        known, foreign = self.known - other.known, self.foreign - other.foreign
        moved = Separation(known=known, foreign=foreign, same_images=self.same_images)
        difference, error = moved.auroc, moved._error()
        p_value = math.erfc(abs(difference) / error / math.sqrt(2)) if error else float(difference == 0)
        reach = _Z95 * error
        return {"difference": difference, "low": difference - reach, "high": difference + reach, "p_value": p_value}

    def _error(self) -> float:
        n, m = len(self.known), len(self.foreign)
        if n < 2 or m < 2:
            return math.nan
        if self.same_images:
            return math.sqrt(float((self.known + self.foreign).var()) / n)
        return math.sqrt(float(self.known.var()) / n + float(self.foreign.var()) / m)


def _share_below(sample: Float[Tensor, " n"], points: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
    """The share of the sample below each point, ties counting half."""
    ordered, points = sample.double().sort().values, points.double().contiguous()
    places = torch.searchsorted(ordered, points), torch.searchsorted(ordered, points, right=True)
    return (places[0] + places[1]).double() / (2 * len(ordered))
