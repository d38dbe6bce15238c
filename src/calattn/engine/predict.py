"""Predictions of a model over a loader: one pass, everything on the device until the end, all processes together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from lightning_fabric import Fabric
from torch import Tensor

from calattn.data.loading import EvalLoader
from calattn.models.predict import copied, joined
from calattn.types import ModelOutput, Predictions


@torch.no_grad()
def predict(
    model: Callable[[Tensor], ModelOutput],
    loader: EvalLoader,
    *,
    fabric: Fabric,
    features: bool = True,
    on_batch: Callable[[int], None] | None = None,
    **fields: Any,
) -> Predictions:
    """What the model says about every image of the loader, in the loader's order, float32, on the CPU.

    `model` gives a `ModelOutput`; it is called under the precision of `fabric`. With several processes each predicts its share
    and all get the whole.
    """
    outputs: list[ModelOutput] = []
    labels, indices = [], []
    for batch in loader:
        with fabric.autocast():
            out = model(batch.images)
        outputs.append(copied(out, count=batch.count, features=features))
        labels.append(batch.labels[: batch.count])
        indices.append(batch.indices[: batch.count])
        if on_batch is not None:
            on_batch(batch.count)
    whole = joined(outputs, lambda rows: gathered(rows, fabric))
    rows, truth = gathered(torch.cat(indices), fabric), gathered(torch.cat(labels), fabric)
    if not features:
        fields["features"] = None
    return Predictions.from_output(whole, truth, indices=rows, **fields)


def gathered(values: Tensor, fabric: Fabric) -> Tensor:
    """The rows of all processes, in order of rank, on the CPU; shares may differ in length."""
    if fabric.world_size == 1:
        return values.cpu()
    # Fabric gives back what it was given, a tensor for a tensor, but its signature allows collections too.
    counts = cast(Tensor, fabric.all_gather(torch.tensor(len(values), device=fabric.device)))
    lengths = counts.reshape(-1).tolist()
    padded = values.new_zeros((max(lengths), *values.shape[1:]))
    padded[: len(values)] = values
    shares = cast(Tensor, fabric.all_gather(padded))
    return torch.cat([share[:length] for share, length in zip(shares, lengths, strict=True)]).cpu()
