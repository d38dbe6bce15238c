"""The classifier: a trained network with all that stands around it, from pictures to calibrated probabilities."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, cast

import pydantic
import torch
from huggingface_hub import ModelCard, ModelHubMixin, snapshot_download
from jaxtyping import Float, UInt8
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_model as load_tensors
from safetensors.torch import save_model as save_tensors
from torch import Tensor, nn

from calattn import posthoc
from calattn.backbones.registry import HUB_PREFIXES
from calattn.data.augment.pipeline import Augment
from calattn.data.decoding import FileImages, PackedBytes, centre_box, resized_part, upright
from calattn.data.images import DataError, as_tensor
from calattn.distribution import version
from calattn.errors import InputError
from calattn.files.atomic import atomic_write
from calattn.heads import Taught
from calattn.models.attach import CalibratedModel
from calattn.models.teach import opened
from calattn.rules import Rule
from calattn.runs import build
from calattn.runs.folder import write_json
from calattn.runs.interface import Interface
from calattn.runs.newimages import ImagePredictions, image_files
from calattn.runs.spec import ModelSpec, RunSpec, Section, first_problem
from calattn.types import Predictions

CONFIG, WEIGHTS, CALIBRATOR, SETS = "config.json", "model.safetensors", "calibrator.safetensors", "sets.safetensors"
CARD, DIAGRAM = "README.md", "reliability.png"


class Config(Section):
    """config.json of a saved classifier: how its network is built and what it takes. It names neither weights nor code."""

    format: Literal[1] = 1
    calattn: str = version()
    model: ModelSpec
    takes: Interface
    checkpoint: Rule = "last"
    calibrator: str | None = None
    anchor: tuple[float, ...] | None = None

    @pydantic.field_validator("model")
    @classmethod
    def _holds_its_own(cls, model: ModelSpec) -> ModelSpec:
        if model.pretrained or model.weights or model.backbone.startswith(HUB_PREFIXES):
            raise ValueError("model names weights elsewhere (pretrained, weights or a backbone on the hub)")
        return model


class Classifier(
    nn.Module, ModelHubMixin, library_name="calattn", pipeline_tag="image-classification", tags=["calibration", "timm"]
):
    """`classifier.predict(pictures)` are probabilities; `classifier(images)` those of a batch as the network takes it.

    `model` is the network with its head, `takes` says which images it takes, a `calibrator` comes behind the head, and
    `sets` say which classes an image may have.
    `save_pretrained`, `push_to_hub` and `from_pretrained` are Hugging Face's; `origin`, the run folder or the saved one that
    it came from, is what the model card is written from.
    """

    def __init__(
        self,
        model: CalibratedModel,
        description: Config,
        *,
        calibrator: posthoc.Calibrator | None = None,
        sets: posthoc.PredictionSets | None = None,
        origin: Path | None = None,
    ) -> None:
        super().__init__()
        self.model, self.description, self.calibrator, self.sets = model, description, calibrator, sets
        self.origin = origin
        if calibrator is not None:
            calibrator.check_classes(self.takes.num_classes)
        self.eval()

    @property
    def takes(self) -> Interface:
        return self.description.takes

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.takes.class_names

    @property
    def augment(self) -> Augment:
        return self.takes.augment()

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def transform(self, images: UInt8[Tensor, "n c h w"]) -> Float[Tensor, "n c s s"]:
        """What the run does to its test images: resized to the network's side, normalised."""
        if images.ndim != 4 or images.dtype != torch.uint8 or images.shape[1] != self.takes.channels:
            raise ValueError(
                f"images must be uint8 [n, {self.takes.channels}, h, w], got {images.dtype} {list(images.shape)}"
            )
        return self.takes.augment((images.shape[2], images.shape[3])).test(images)

    def pixels(self, image: Any) -> UInt8[Tensor, "c s s"]:
        """One picture (a file's path, a PIL image, uint8 pixels) in the channels and the size that the network sees."""
        takes = self.takes
        if isinstance(image, str | os.PathLike):
            picture = _file(Path(image), takes).open(0)
        else:
            picture = upright(opened(image, "the image")).convert("RGB" if takes.channels == 3 else "L")
        size = (takes.size, takes.size)
        whole = (0.0, 0.0, float(picture.width), float(picture.height))
        box = whole if takes.stretched else centre_box((picture.height, picture.width), size)
        return as_tensor(resized_part(picture, box, size, interpolation=takes.interpolation))

    @torch.no_grad()
    def forward(self, images: Float[Tensor, "b c s s"]) -> tuple[Float[Tensor, "b k"], Float[Tensor, " b"]]:
        """Probabilities and the head's temperature of each image."""
        out = self.model.output(images)
        if self.calibrator is None:
            return out.probs, out.scale
        unknown = torch.zeros(len(images), dtype=torch.int64)  # no calibrator reads a label when it is applied
        found = Predictions.from_output(out, unknown.to(images.device))
        return self.calibrator.apply_to_block(found).probs.float(), out.scale

    def predict(
        self,
        images: Any,
        *,
        batch_size: int = 64,
        on_batch: Callable[[int, int], None] | None = None,
    ) -> ImagePredictions:
        """Probabilities of new pictures: paths (files, folders, patterns), PIL images or uint8 arrays, one or many.

        Files that cannot be read are left out, and named in `skipped`. `on_batch` is told how many are done, of how many.
        """
        items = list(_items(images))
        probs, scales, names, skipped = [], [], [], []
        with ThreadPoolExecutor() as pool:
            for start in range(0, len(items), batch_size):
                batch = items[start : start + batch_size]
                read = list(pool.map(self._pixels_or_error, (item for _, item in batch)))
                good = [
                    (name, pixels) for (name, _), pixels in zip(batch, read, strict=True) if isinstance(pixels, Tensor)
                ]
                skipped += [
                    (name, str(e)) for (name, _), e in zip(batch, read, strict=True) if not isinstance(e, Tensor)
                ]
                if good:
                    stack = torch.stack([pixels for _, pixels in good]).to(self.device)
                    given = self(self.augment.test(stack))
                    probs.append(given[0].cpu())
                    scales.append(given[1].cpu())
                    names += [name for name, _ in good]
                if on_batch is not None:
                    on_batch(start + len(batch), len(items))
        found = ImagePredictions(
            names=tuple(names),
            probs=torch.cat(probs) if probs else torch.zeros(0, self.takes.num_classes),
            temperature=torch.cat(scales).float() if scales else torch.zeros(0),
            class_names=self.class_names,
            skipped=tuple(skipped),
        )
        if self.sets is None or not names:
            return found
        unlabelled = Predictions.from_probs(found.probs, torch.zeros(len(names), dtype=torch.int64))
        return dataclasses.replace(found, sets=self.sets(unlabelled))

    def _pixels_or_error(self, image: Any) -> Tensor | DataError:
        try:
            return self.pixels(image)
        except DataError as error:
            return error

    # --- the folder that is shipped

    def _save_pretrained(self, save_directory: Path) -> None:
        _check_rebuilds(self.description, self.model)
        with atomic_write(save_directory / WEIGHTS) as partial:
            save_tensors(self.model, str(partial))
        if self.calibrator is not None:
            self.calibrator.save(save_directory / CALIBRATOR)
        if self.sets is not None:
            self.sets.save(save_directory / SETS)
        write_json(self.description.model_dump(mode="json"), save_directory / CONFIG)
        if self.origin is not None and (self.origin / CONFIG).is_file():
            for name in (CARD, DIAGRAM):
                if (self.origin / name).is_file() and self.origin.resolve() != save_directory.resolve():
                    with atomic_write(save_directory / name) as partial:
                        partial.write_bytes((self.origin / name).read_bytes())
        else:
            self.generate_model_card(save_directory).save(save_directory / CARD)

    def generate_model_card(self, folder: Path | None = None, **_: Any) -> ModelCard:
        """From the run's test predictions; the reliability diagram goes to `folder`."""
        from calattn.runs.card import model_card

        return model_card(self, folder)

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        revision: str | None,
        cache_dir: str | Path | None,
        force_download: bool,
        local_files_only: bool,
        token: str | bool | None,
        **_: Any,
    ) -> Classifier:
        # Not Hugging Face's PyTorchModelHubMixin: without a safetensors file that would go and unpickle another.
        folder = Path(model_id)
        if not folder.is_dir():
            folder = Path(
                snapshot_download(
                    model_id,
                    revision=revision,
                    cache_dir=cache_dir,
                    force_download=force_download,
                    local_files_only=local_files_only,
                    token=token,
                    allow_patterns=[CONFIG, WEIGHTS, CALIBRATOR, SETS, CARD, DIAGRAM],
                )
            )
        return read_folder(folder)


def read_folder(folder: Path) -> Classifier:
    """The classifier that `save_pretrained` wrote there."""
    try:
        config = Config.model_validate(json.loads((folder / CONFIG).read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(f"{folder} has no {CONFIG}; name a folder that save_pretrained wrote") from error
    except ValueError as error:  # of JSON, or pydantic's
        problem = first_problem(error) if isinstance(error, pydantic.ValidationError) else error
        raise InputError(f"{folder / CONFIG} is no classifier that this calattn reads ({problem})") from None
    model = built(config)
    try:
        load_tensors(model, str(folder / WEIGHTS), strict=True)
    except (OSError, SafetensorError, RuntimeError) as error:
        problem = " ".join(str(error).split())[:200]
        raise InputError(
            f"{folder / WEIGHTS} does not hold the network of {CONFIG} ({problem}); copy it again"
        ) from None
    calibrator = None if config.calibrator is None else posthoc.load(folder / CALIBRATOR)
    sets = posthoc.PredictionSets.load(folder / SETS) if (folder / SETS).is_file() else None
    return Classifier(model, config, calibrator=calibrator, sets=sets, origin=folder)


def built(config: Config) -> CalibratedModel:
    """The network, its weights still random."""
    spec = RunSpec.model_validate({"model": config.model.model_dump(mode="json")})
    takes = config.takes
    return build.build_model(spec, num_classes=takes.num_classes, channels=takes.channels, size=takes.size)


def config_of(
    model: CalibratedModel,
    chosen: ModelSpec,
    takes: Interface,
    *,
    checkpoint: str = "last",
    calibrator: posthoc.Calibrator | None = None,
) -> Config:
    """What a trained network needs to be built again, without whatever it was started from."""
    backbone = chosen.backbone
    if backbone.startswith(HUB_PREFIXES):  # the architecture that its configuration there names
        backbone = model.pretrained_cfg.get("architecture", backbone)
    # Not checked until it is saved: a run may have a backbone that no other machine can build.
    return Config.model_construct(
        format=1,
        calattn=version(),
        model=chosen.model_copy(update={"pretrained": False, "weights": None, "backbone": backbone}),
        takes=takes,
        checkpoint=cast(Rule, checkpoint),
        calibrator=None if calibrator is None else type(calibrator).__name__,
        anchor=tuple(model.head.anchor.tolist()) if isinstance(model.head, Taught) else None,
    )


def _check_rebuilds(config: Config, model: CalibratedModel) -> None:
    """What could not be loaded again is not saved."""
    try:
        again = built(Config.model_validate(config.model_dump(mode="json"))).state_dict()
    except ValueError as error:
        raise InputError(
            f"the network cannot be built from its configuration ({error}); give its options in the spec"
        ) from None
    if {name: t.shape for name, t in again.items()} != {name: t.shape for name, t in model.state_dict().items()}:
        raise InputError(
            f"{config.model.backbone} builds another network than this one; name the architecture as model.backbone and its "
            "arguments as model.options in the spec"
        )


def _file(path: Path, takes: Interface) -> FileImages:
    """One file as a split of its own: its errors name it, and it is decoded as the files of a data set are."""
    return FileImages(
        folder=Path(),
        paths=PackedBytes.of([os.fsencode(path)]),
        rows=torch.zeros(1, dtype=torch.int64),
        labels=torch.zeros(1, dtype=torch.int64),
        class_names=takes.class_names,
        num_channels=takes.channels,
    )


def _items(images: Any) -> Iterable[tuple[str, Any]]:
    """(name, picture) pairs of whatever was given: files by their paths, others by their number."""
    if isinstance(images, str | os.PathLike | Image.Image) or _is_one(images):
        images = [images]
    for number, each in enumerate(images):
        if isinstance(each, str | os.PathLike):
            yield from ((str(path), path) for path in image_files(each))
        else:
            yield str(number), each


def _is_one(pixels: Any) -> bool:
    """Whether an array is one picture (height × width, with its channels if any) and not several."""
    shape = tuple(getattr(pixels, "shape", ()))
    channels = shape[:1] if isinstance(pixels, Tensor) else shape[2:]
    return len(shape) == 2 or (len(shape) == 3 and channels in ((1,), (3,), (4,)))
