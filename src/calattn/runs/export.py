"""Export: a classifier as a file that needs no calattn, checked against the classifier before it gets its name."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from calattn.errors import InputError
from calattn.files.atomic import PathArg, atomic_write
from calattn.runs.classifier import Classifier

Format = Literal["onnx", "torch-export"]
SUFFIX: dict[Format, str] = {"onnx": ".onnx", "torch-export": ".pt2"}
INPUT, OUTPUTS = "images", ("probabilities", "temperature")
METADATA = "calattn.json"  # in a .pt2 file; its keys are the metadata of an ONNX file
TOLERANCE = 1e-4
_BATCHES = ({0: torch.export.Dim.DYNAMIC},)  # of any size


class ExportError(InputError):
    """A classifier that has no such form, or whose exported form computes something else."""


class Exportable(nn.Module):
    """Images [b, c, s, s] to (calibrated probabilities [b, k], the head's temperature [b]).

    With `pixels`, images are uint8 and normalised inside; else they are float32 and normalised already.
    """

    shift: Tensor
    factor: Tensor

    def __init__(self, classifier: Classifier, *, pixels: bool) -> None:
        super().__init__()
        takes, calibrator = classifier.takes, classifier.calibrator
        self.model, self.pixels = classifier.model, pixels
        self.calibrator = None if calibrator is None else calibrator.module()
        mean, std = (torch.tensor(each, dtype=torch.float64).view(-1, 1, 1) for each in (takes.mean, takes.std))
        self.register_buffer("shift", (255 * mean).float())
        self.register_buffer("factor", (1 / (255 * std)).float())
        self.eval()

    def forward(self, images: Tensor) -> tuple[Float[Tensor, "b k"], Float[Tensor, " b"]]:
        out = self.model.output((images.float() - self.shift) * self.factor if self.pixels else images)
        logits = out.calibrated_logits
        if self.calibrator is not None:
            logits = self.calibrator(logits, out.features)
        return logits.softmax(dim=1), out.scale.float()


@dataclasses.dataclass(frozen=True)
class Exported:
    """Where the file is, and the largest difference to the classifier that was seen in it."""

    path: Path
    format: Format
    difference: float


def export(classifier: Classifier, path: PathArg, *, format: Format | None = None, pixels: bool = True) -> Exported:
    """Writes an ONNX file, or a program of `torch.export` (.pt2): `images` in, `probabilities` and `temperature` out.

    Batches may have any size. `pixels` takes uint8 images of the network's size and normalises them inside; else they come
    normalised. Class names and what images are taken are in the file's metadata. The file is run on random images, by ONNX
    Runtime or torch, and only kept if it agrees with the classifier to 1e-4.
    """
    path = Path(path)
    chosen = format or next((name for name, suffix in SUFFIX.items() if path.suffix == suffix), None)
    if chosen not in SUFFIX:
        raise ExportError(f"{path} must end in {' or '.join(SUFFIX.values())}, or format be one of {', '.join(SUFFIX)}")
    module = Exportable(classifier.cpu(), pixels=pixels)
    takes = classifier.takes
    described = {
        "class_names": json.dumps(takes.class_names, ensure_ascii=False),
        "images": json.dumps(
            {"channels": takes.channels, "size": takes.size, "dtype": "uint8" if pixels else "float32"}
            | ({} if pixels else {"mean": takes.mean, "std": takes.std})
        ),
    }
    write = _write_onnx if chosen == "onnx" else _write_program
    with atomic_write(path) as partial, torch.no_grad():  # without gradients: Swin's masks are then constants
        run = write(module, _images(module, takes.channels, takes.size, count=2), partial, described)
        difference = max(
            _difference(module, run, _images(module, takes.channels, takes.size, count=count)) for count in (1, 3)
        )
        if not difference <= TOLERANCE:
            raise ExportError(
                f"the {chosen} file differs from the network by {difference:.2g}, more than {TOLERANCE:g}; nothing was "
                f"written: try {next(name for name in SUFFIX if name != chosen)}"
            )
    return Exported(path, chosen, difference)


def _images(module: Exportable, channels: int, size: int, *, count: int) -> Tensor:
    drawn = torch.randint(0, 256, (count, channels, size, size), generator=torch.Generator().manual_seed(count))
    return drawn.to(torch.uint8) if module.pixels else (drawn - module.shift) * module.factor


def _difference(module: nn.Module, run: Callable[[Tensor], Any], images: Tensor) -> float:
    return max(
        float(np.abs(np.asarray(theirs) - ours.numpy()).max())
        for ours, theirs in zip(module(images), run(images), strict=True)
    )


def _write_program(
    module: nn.Module, example: Tensor, path: Path, described: dict[str, str]
) -> Callable[[Tensor], Any]:
    program = torch.export.export(module, (example,), dynamic_shapes=_BATCHES)
    texts = {key: json.loads(value) for key, value in described.items()}
    torch.export.save(program, path, extra_files={METADATA: json.dumps(texts, ensure_ascii=False)})
    return torch.export.load(path).module()


def _write_onnx(module: nn.Module, example: Tensor, path: Path, described: dict[str, str]) -> Callable[[Tensor], Any]:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ExportError(f"{error.name} is not installed; pip install 'calattn[onnx]'") from None
    try:
        made = torch.onnx.export(
            module,
            (example,),
            dynamo=True,
            dynamic_shapes=_BATCHES,
            input_names=[INPUT],
            output_names=list(OUTPUTS),
            verbose=False,
        )
    except torch.onnx.OnnxExporterError as error:
        cause = " ".join(str(error.__cause__ or error).split())[:200]
        raise ExportError(f"the network or its calibrator has no ONNX form ({cause}); try torch-export") from error
    assert made is not None
    made.model.metadata_props.update(described)
    made.save(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda images: session.run(list(OUTPUTS), {INPUT: images.numpy()})
