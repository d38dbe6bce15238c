"""The interface of a run's network: which images it takes and which classes it gives, kept in the run folder."""

from __future__ import annotations

import dataclasses

from calattn import data
from calattn.data.augment.pipeline import Augment
from calattn.data.resize import Interpolation
from calattn.data.sources.datasets import PREFIXES
from calattn.files.predictions import PredictionFileError, load_predictions
from calattn.runs import build
from calattn.runs.folder import RunFolder, RunFolderError, read_json, write_json
from calattn.runs.spec import RunSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interface:
    """Images of `size` px with `channels`, normalised by `mean` and `std`; logits in the order of `class_names`."""

    class_names: tuple[str, ...]
    channels: int
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def augment(self, size_in: tuple[int, int], *, interpolation: Interpolation, num_classes: int) -> Augment:
        """What is done to test images that come as `size_in`, of a data set with `num_classes`."""
        return Augment(
            channels=self.channels,
            size_in=size_in,
            size_out=self.size,
            interpolation=interpolation,
            mean=self.mean,
            std=self.std,
            num_classes=num_classes,
        )


def interface_of(spec: RunSpec, found: build.RunData) -> Interface:
    """That of a network trained on these images."""
    mean, std = build.normalisation(spec, found.dataset)
    return Interface(
        class_names=found.class_names,
        channels=found.dataset.channels,
        size=build.network_size(spec, found.train),
        mean=mean,
        std=std,
    )


def write_interface(folder: RunFolder, interface: Interface) -> None:
    write_json(dataclasses.asdict(interface), folder.interface_path)


def read_interface(folder: RunFolder) -> Interface | None:
    """What training noted; None for runs of versions that did not."""
    if not folder.interface_path.is_file():
        return None
    found = read_json(folder.interface_path)
    try:
        return Interface(
            class_names=tuple(map(str, found["class_names"])),
            channels=int(found["channels"]),
            size=int(found["size"]),
            mean=tuple(map(float, found["mean"])),
            std=tuple(map(float, found["std"])),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RunFolderError(
            f"{folder.interface_path} does not say what the network takes ({type(error).__name__}: {error}); put it back, or "
            "remove it and run calattn predict where the run's data set is"
        ) from None


def known_classes(folder: RunFolder) -> tuple[str, ...] | None:
    """The classes that the run was trained on, by its interface or else by any of its predictions."""
    noted = read_interface(folder)
    if noted is not None:
        return noted.class_names
    for path in sorted(folder.all_predictions_path.glob("*")):
        try:
            return load_predictions(path, features=False, verify=False).class_names
        except PredictionFileError:
            continue
    return None


def run_interface(folder: RunFolder, spec: RunSpec) -> Interface:
    """From the run folder alone; of runs that did not note it, with the help of their predictions and their data set."""
    return read_interface(folder) or _gathered(folder, spec)


def _gathered(folder: RunFolder, spec: RunSpec) -> Interface:
    described = _described(folder, spec)
    names = known_classes(folder) or described.class_names
    side = spec.data.size or (described.size[0] if described.size else None)
    if not names or side is None:
        raise RunFolderError(
            f"{folder.path} has no predictions that say which classes there are; run calattn predict {folder.path} where the "
            "run's data set is"
        )
    mean, std = build.normalisation(spec, described)
    return Interface(class_names=names, channels=described.channels, size=side, mean=mean, std=std)


def _described(folder: RunFolder, spec: RunSpec) -> data.Dataset:
    try:
        return data.describe(spec.data.name)
    except data.DataError as error:
        if not spec.data.name.startswith(PREFIXES):
            raise
        raise RunFolderError(
            f"{folder.path} has no {folder.interface_path.name}, which newer runs have, and its data set is not here "
            f"({error}); run calattn predict {folder.path} once where the data set is: that adds the file"
        ) from None
