"""`load`: a trained run, or a folder or a hub's repository that `save_pretrained` wrote, as a classifier."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import torch

from calattn import posthoc
from calattn.errors import InputError
from calattn.files.atomic import PathArg
from calattn.heads import Taught
from calattn.models.attach import CalibratedModel
from calattn.runs import build
from calattn.runs.classifier import CALIBRATOR, CONFIG, SETS, Classifier, config_of, read_folder
from calattn.runs.environment import naming_plugins
from calattn.runs.folder import RunFolder
from calattn.runs.interface import Interface, read_interface
from calattn.runs.spec import RunSpec


def load(
    source: PathArg,
    checkpoint: str = "last",
    *,
    calibrator: PathArg | posthoc.Calibrator | None = None,
    device: str | torch.device = "cpu",
) -> Classifier:
    """The classifier of a run folder, of a folder that `save_pretrained` wrote, or of a repository on the Hugging Face hub.

    `checkpoint` is a rule (`calattn.rules.RULES`) of a run. A `calibrator`, its file, or what `calattn calibrate --out` wrote,
    takes the place of a saved one. The data set need not be there; a run folder whose checkpoints were removed cannot be loaded.
    """
    path = Path(source)
    behind, sets = _behind(calibrator)
    if (path / CONFIG).is_file() or _may_be_on_the_hub(path):
        found = from_pretrained(source)
        if behind is not None:
            config = found.description.model_copy(update={"calibrator": type(behind).__name__})
            found = Classifier(found.model, config, calibrator=behind, sets=sets)
        return found.to(device)
    folder = RunFolder.open(path)
    spec = folder.spec()
    with naming_plugins(folder):
        takes = read_interface(folder)
        model = trained_network(folder, spec, checkpoint, takes)
    config = config_of(model, spec.model, takes, checkpoint=checkpoint, calibrator=behind)
    return Classifier(model, config, calibrator=behind, sets=sets, origin=folder.path).to(device)


def from_pretrained(source: PathArg, *, revision: str | None = None, token: str | bool | None = None) -> Classifier:
    """What `save_pretrained` or `push_to_hub` wrote: from a folder, or from the hub by its name there."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled

    if Path(source).is_dir():
        return read_folder(Path(source))
    try:
        return Classifier.from_pretrained(str(source), revision=revision, token=token)
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, HFValidationError, ConnectionError) as error:
        why = " ".join(str(error).split())[:160]
        raise InputError(
            f"there is no folder {source}, and no such model on the hub ({why}); check the name and the network"
        ) from None


def trained_network(folder: RunFolder, spec: RunSpec, rule: str, interface: Interface) -> CalibratedModel:
    """The spec's network with the weights that a checkpoint rule chose; those it started from are not read for that."""
    weights = folder.checkpoints(spec).weights(rule)
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


def _behind(
    given: PathArg | posthoc.Calibrator | None,
) -> tuple[posthoc.Calibrator | None, posthoc.PredictionSets | None]:
    """A calibrator, its file, or the folder that `calattn calibrate --out` wrote, which may hold prediction sets too."""
    if given is None or isinstance(given, posthoc.Calibrator):
        return given, None
    path = Path(given)
    if not path.is_dir():
        return posthoc.load(path), None
    sets = posthoc.PredictionSets.load(path / SETS) if (path / SETS).is_file() else None
    return posthoc.load(path / CALIBRATOR), sets


def _may_be_on_the_hub(path: Path) -> bool:
    """Nothing lies there, nor the folder around it, and it has the form of a name on the hub: owner/name."""
    return not path.exists() and not path.parent.exists() and bool(re.fullmatch(r"[\w.-]+/[\w.-]+", str(path)))
