"""Predictions of a model over a loader: `predict` for anybody's model, and the copying that the engine's own loop shares."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from calattn import checks
from calattn.models.attach import CalibratedModel
from calattn.types import ModelOutput, Predictions


@torch.no_grad()
def predict(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    device: str | torch.device | None = None,
    features: bool = True,
    on_batch: Callable[[int], None] | None = None,
    **fields: Any,
) -> Predictions:
    """What a model says about every image of a loader, in the loader's order, float32, on the CPU.

    `model` is one of `attach`, whose scale and features are kept, or any module that returns logits (or an object with `.logits`,
    as Hugging Face's). `loader` yields (images, labels), or dicts with `pixel_values` and `labels`. The images go where the
    model is, or both to `device`, where the model stays. It predicts in evaluation mode, and each of its layers is then put
    back into the mode it was in. `features=False` leaves them out, `on_batch` is told the size of each batch, and `fields` are
    further ones of `Predictions`, such as `split="validation"`. Class names are those of `loader.dataset.classes`.

    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    >>> batches = [(torch.zeros(2, 3, 2, 2), torch.tensor([0, 1])), (torch.zeros(1, 3, 2, 2), torch.tensor([2]))]
    >>> predict(net, batches, split="test")
    Predictions(3 samples, 3 classes, float32, split='test')
    """
    if device is not None:
        model.to(device)
    place = _device_of(model)
    outputs: list[ModelOutput | Tensor] = []
    labels = []
    with _evaluating(model):
        for number, batch in enumerate(loader):
            images, truth = _parts(batch, number)
            out = _output(model, images.to(place, non_blocking=True))
            count = len(truth)
            outputs.append(copied(out, features=features, device="cpu"))
            labels.append(truth.to("cpu", copy=True))
            if on_batch is not None:
                on_batch(count)
    if not outputs:
        raise ValueError("loader yields no batches: there is nothing to predict; is its data set empty?")
    whole, truth = joined(outputs), torch.cat(labels)
    logits = whole if isinstance(whole, Tensor) else whole.logits
    fields = {"class_names": _classes_of(loader, logits.shape[1])} | fields
    if isinstance(whole, Tensor):
        return Predictions(logits=whole, labels=truth, **fields)
    return Predictions.from_output(whole, truth, **(fields if features else {"features": None} | fields))


def _classes_of(loader: Any, count: int) -> tuple[str, ...] | None:
    """The names that torchvision's data sets have as `classes`, also those of a `Subset`; None where they do not fit."""
    dataset = getattr(loader, "dataset", None)
    while dataset is not None and not hasattr(dataset, "classes"):
        dataset = getattr(dataset, "dataset", None)
    names = getattr(dataset, "classes", None)
    fits = isinstance(names, list | tuple) and len(names) == count and all(isinstance(name, str) for name in names)
    return tuple(names) if fits else None  # type: ignore[arg-type]


def copied(
    out: ModelOutput | Tensor, *, count: int | None = None, features: bool = True, device: str | None = None
) -> Any:
    """The first `count` rows in float32, as a copy: a model compiled into CUDA graphs writes its next outputs over these."""
    if isinstance(out, Tensor):
        return out[:count].to(device=device or out.device, dtype=torch.float32, copy=True)
    kept = out if features else out._replace(features=out.features[:, :0])
    return ModelOutput(*(None if part is None else copied(part, count=count, device=device) for part in kept))  # type: ignore[arg-type]


def joined(outputs: list[Any], gather: Callable[[Tensor], Tensor] = lambda rows: rows) -> Any:
    """The batches of `copied` as one; `gather` may bring the rows of other processes to them."""
    if isinstance(outputs[0], Tensor):
        return gather(torch.cat(outputs))
    parts = zip(*outputs, strict=True)
    return ModelOutput(*(None if part[0] is None else joined(list(part), gather) for part in parts))  # type: ignore[arg-type]


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and afterwards every module's own: parts of a network in training may be in evaluation mode."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def _device_of(model: nn.Module) -> torch.device:
    first = next(model.parameters(), next(model.buffers(), None))
    return torch.device("cpu") if first is None else first.device


def _parts(batch: Any, number: int) -> tuple[Tensor, Tensor]:
    """Images and labels of what a loader gave."""
    if isinstance(batch, Mapping):
        found = [batch.get("pixel_values"), batch.get("labels")]
    else:
        found = list(batch) if isinstance(batch, tuple | list) else [batch]
    if len(found) != 2 or not isinstance(found[0], Tensor) or found[1] is None:
        got = f"a dict of {', '.join(map(str, batch))}" if isinstance(batch, Mapping) else _named(found)
        raise ValueError(
            f"batch {number} of the loader is {got}; it must be (images, labels), or a dict with pixel_values and labels: "
            "wrap the loader, ((x, y) for x, y, *_ in loader)"
        )
    images, labels = found[0], checks.as_tensor(found[1], "labels")
    if labels.ndim == 0 or len(labels) != len(images):
        raise ValueError(f"batch {number} of the loader has {len(images)} images and labels {list(labels.shape)}")
    return images, labels


def _output(model: nn.Module, images: Tensor) -> ModelOutput | Tensor:
    # What torch.compile and DDP wrap a model in hides what it offers beside its logits.
    for inner in (model, getattr(model, "_orig_mod", None), getattr(model, "module", None)):
        if isinstance(inner, CalibratedModel):
            return inner.output(images)
    out = model(images)
    out = out if isinstance(out, Tensor | ModelOutput) else getattr(out, "logits", out)
    logits = out.logits if isinstance(out, ModelOutput) else out
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(images):
        raise ValueError(
            f"{type(model).__name__} returns {_named([logits])} for {len(images)} images, not logits [{len(images)}, classes]; "
            "wrap it in a module that returns the logits alone"
        )
    return out


def _named(values: list[Any]) -> str:
    shown = [f"a tensor {list(v.shape)}" if isinstance(v, Tensor) else type(v).__name__ for v in values]
    return shown[0] if len(shown) == 1 else f"{len(shown)} things ({', '.join(shown)})"
