"""What the head adds to the paper's networks at 224 px: counted, with nothing trained."""

from __future__ import annotations

import functools
import itertools

import torch

from calattn.models.attach import Overhead, overhead
from calattn.runs.build import build_model
from reproduction import paper
from reproduction.cells import BACKBONES, CIFARS, TRANSFORMERS, Cell, spec_of
from reproduction.render import markdown_table
from reproduction.tables import DATASETS, MODELS

_CLASSES = {"cifar10": 10, "cifar100": 100}
_MIB = 2**20
TEXT = """# Size of the checkpoint with and without CalAttn

Bytes of the tensors in MiB, which is what the paper's MB are, float32: ours, the paper's. The paper's text says that fewer than
0.1 % of parameters are added.

"""


@functools.cache
def cost_of(dataset: str, model: str) -> Overhead:
    """What the head adds to the paper's network; built without memory for its weights."""
    spec = spec_of(Cell(dataset=dataset, model=model, head="calattn"), "paper")
    assert spec.data.size is not None
    with torch.device("meta"):
        built = build_model(spec, num_classes=_CLASSES[dataset], channels=3, size=spec.data.size)
    return overhead(built)


def page(_results: object) -> str:
    """The table of checkpoint sizes, as Markdown."""
    rows = []
    for dataset, model in itertools.product(CIFARS, TRANSFORMERS):
        cost, keys = cost_of(dataset, model), {"dataset": dataset, "backbone": BACKBONES[model]}
        base, head = (paper.find("checkpoint_size", head=head, **keys) or {} for head in ("none", "calattn"))
        ours = (cost.backbone_bytes, cost.backbone_bytes + cost.added_bytes, cost.added_bytes)
        theirs = (base["value"], head["value"], head["change"])
        pairs = [f"{mine / _MIB:.2f}, {printed:.2f}" for mine, printed in zip(ours, theirs, strict=True)]
        rows.append([DATASETS[dataset], MODELS[model], *pairs, f"{100 * cost.fraction:.3f}"])
    header = ["data set", "network", "backbone", "+ CalAttn", "added", "parameters added, %"]
    return TEXT + markdown_table(header, rows) + "\n"
