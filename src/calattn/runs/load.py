"""`load_model`: a trained run as a model that can be called, from its folder alone."""

from __future__ import annotations

import dataclasses
import warnings

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from calattn.data.augment.pipeline import Augment
from calattn.engine.checkpoint import CheckpointFolder
from calattn.files.atomic import PathArg
from calattn.heads import Taught
from calattn.models.attach import CalibratedModel
from calattn.runs import build
from calattn.runs.environment import naming_plugins
from calattn.runs.folder import RunFolder
from calattn.runs.interface import Interface, read_interface
from calattn.runs.spec import RunSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """`model(transform(images))` are calibrated logits; `model.output(…)` has raw logits, scale and features beside them."""

    model: CalibratedModel
    augment: Augment
    class_names: tuple[str, ...]

    def transform(self, images: UInt8[Tensor, "n c h w"]) -> Float[Tensor, "n c s s"]:
        """What the run does to its test images: resized to the network's side, normalised."""
        if images.ndim != 4 or images.dtype != torch.uint8 or images.shape[1] != self.augment.channels:
            raise ValueError(
                f"images must be uint8 [n, {self.augment.channels}, h, w], got {images.dtype} {list(images.shape)}"
            )
        height, width = images.shape[-2:]
        return dataclasses.replace(self.augment, size_in=(height, width)).test(images)


def load_model(path: PathArg, checkpoint: str = "last", *, device: str | torch.device = "cpu") -> LoadedModel:
    """The network of a run folder under a checkpoint rule (`calattn.rules.RULES`), in evaluation mode.

    The data set need not be there. A run folder whose checkpoints were removed cannot be loaded.
    """
    folder = RunFolder.open(path)
    spec = folder.spec()
    with naming_plugins(folder):
        interface = read_interface(folder)
        model = trained_network(folder, spec, checkpoint, interface)
    augment = interface.augment(
        (interface.size, interface.size), interpolation=spec.data.interpolation, num_classes=interface.num_classes
    )
    return LoadedModel(model=model.to(device).eval(), augment=augment, class_names=interface.class_names)


def trained_network(folder: RunFolder, spec: RunSpec, rule: str, interface: Interface) -> CalibratedModel:
    """The spec's network with the weights that a checkpoint rule chose; those it started from are not read for that."""
    weights = CheckpointFolder(folder.checkpoints_path, spec.hash).weights(rule)
    bare = spec.model.model_copy(update={"pretrained": False, "weights": None})
    model = build.build_model(
        spec.model_copy(update={"model": bare}),
        num_classes=interface.num_classes,
        channels=interface.channels,
        size=interface.size,
    )
    model.load_state_dict(weights)
    if isinstance(model.head, Taught) and not model.head.is_taught:
        warnings.warn(
            f"the head of {folder.path} is not taught at checkpoint {rule}: probabilities are those of the bare network; only "
            "last has the taught head, once the run is finished",
            stacklevel=2,
        )
    return model
