"""The table of checkpoint sizes: counted on the paper's networks, with nothing trained."""

from __future__ import annotations

import functools

import torch

from calattn.models.attach import Overhead, overhead
from calattn.runs.build import build_model
from calattn.types import MetricRow
from reproduction import paper
from reproduction.cells import BACKBONES, TRANSFORMERS, Cell, ScaleName, spec_of
from reproduction.tables import DATASETS, MODELS, Column, Entry, Layout, Quantity, Row, Table, fraction

_CLASSES = {"cifar10": 10, "cifar100": 100}
_MIB = 2**20
_SIZE = Quantity(title="checkpoint, MiB", metric="checkpoint_size")
_SHARE = Quantity(title="parameters added, %", metric="parameters_added")
_COLUMNS = (Column(title="backbone"), Column(title="+ CalAttn"), Column(title="added"))


def size_table(scale: ScaleName) -> Table:
    """Bytes with and without the head, and the share of parameters that the head adds, of the networks at 224 px."""
    layout = Layout(
        name="checkpoint_size",
        title="Size of the checkpoint with and without CalAttn",
        columns=_COLUMNS,
        blocks=(),
        quantities=(_SIZE, _SHARE),
    )
    return Table(
        layout=layout,
        scale=scale,
        rule=None,
        title=f"{layout.title}; counted, no run",
        rows=tuple(row for data in _CLASSES for model in TRANSFORMERS for row in _rows(data, model)),
        notes=(
            "Always the paper's networks at 224 px (ViT-B/16, DeiT-S/16, Swin-S), whatever the scale; float32.",
            "The paper's text says that fewer than 0.1 % of parameters are added.",
        ),
    )


@functools.cache
def cost_of(dataset: str, model: str) -> Overhead:
    """What the head adds to the paper's network; built without memory for its weights."""
    spec = spec_of(Cell(dataset=dataset, model=model, head="calattn"), "paper")
    assert spec.data.size is not None
    with torch.device("meta"):
        built = build_model(spec, num_classes=_CLASSES[dataset], channels=3, size=spec.data.size)
    return overhead(built)


def _rows(dataset: str, model: str) -> tuple[Row, Row]:
    cost = cost_of(dataset, model)
    header = (DATASETS[dataset], MODELS[model])
    base, head = (
        paper.find("checkpoint_size", dataset=dataset, backbone=BACKBONES[model], head=head)
        for head in ("none", "calattn")
    )
    assert base is not None
    assert head is not None
    ours = (cost.backbone_bytes, cost.backbone_bytes + cost.added_bytes, cost.added_bytes)
    theirs = (fraction(base), fraction(head), fraction(head, "change"))
    sizes = tuple(
        Entry(ours=MetricRow(name="checkpoint_size", value=mine / _MIB), paper=printed_size)
        for mine, printed_size in zip(ours, theirs, strict=True)
    )
    added = MetricRow(name="parameters_added", value=cost.added_params / cost.backbone_params)
    nothing = Entry(hole="a backbone adds nothing to itself", planned=False)
    return (
        Row(header=header, quantity=_SIZE, entries=sizes),
        Row(header=header, quantity=_SHARE, entries=(nothing, nothing, Entry(ours=added))),
    )
