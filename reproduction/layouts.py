"""The tables of `tables.yaml` as layouts: which cells stand where, and which printed number stands beside them."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any

import yaml

from reproduction import paper
from reproduction.cells import CNN_NAMES, LOSSES, Cell, ScaleName
from reproduction.results import Phase
from reproduction.tables import Block, Column, Layout, Quantity

_FILE: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "tables.yaml").read_text(encoding="utf-8"))
_NAMES: dict[str, dict[str, str]] = _FILE["names"]
DATASETS, MODELS, LOSS_TITLES, BACKBONES = (_NAMES[each] for each in ("dataset", "model", "loss", "backbone"))
DEFINITIONS: dict[str, str] = _FILE["definitions"]
LAYOUTS: tuple[str, ...] = tuple(_FILE["tables"])
WEIGHTS = tuple(tenth / 10 for tenth in range(11))


@functools.cache
def layout_of(name: str, scale: ScaleName) -> Layout:
    """The layout of a table; at the paper's scale the networks are all the paper's."""
    found = _FILE["tables"][name]
    columns = _columns(name, found["columns"])
    places = [place for group in found["rows"] for place in _product(group)]
    notes = found.get("notes", []) + (found.get("notes_reduced", []) if scale == "reduced" else [])
    return Layout(
        name=name,
        title=found["title"],
        header=("data set", "network"),
        columns=tuple(Column(title=each["title"], keys=each["keys"], phase=each.get("phase")) for each in columns),
        blocks=tuple(_block(place, columns, found.get("seeds", [0]), scale) for place in places),
        quantities=(
            *(Quantity(**each) for each in found.get("quantities", [])),
            *(quantity(text, "stated") for text in found.get("stated", [])),
            *(quantity(text, "printed") for text in found.get("printed", [])),
            *(quantity(text) for text in found.get("beside", [])),
        ),
        notes=tuple(notes),
        intervals=found.get("intervals", False),
        paper_network=found.get("paper_network", ""),
    )


def quantity(text: str, kind: str = "beside") -> Quantity:
    """From "metric" or "metric phase". `kind`: the paper prints it, "stated" with the phase; else it stands there for honesty.

    >>> quantity("nll post").title, quantity("nll post").keys, quantity("ece", "printed").keys
    ('NLL after TS', None, {'metric': 'ece'})
    """
    metric, _, after = text.partition(" ")
    phase: Phase = after or "pre"  # type: ignore[assignment]
    keys = {"stated": {"metric": metric, "phase": phase}, "printed": {"metric": metric}}.get(kind)
    return Quantity(title=f"{_NAMES['metric'][metric]}{_NAMES['phase'][phase]}", metric=metric, phase=phase, keys=keys)


def _product(group: dict[str, Any]) -> list[dict[str, str]]:
    """Every combination of what a group of rows lists.

    >>> _product({"dataset": "mnist", "model": ["vit", "deit"]})
    [{'dataset': 'mnist', 'model': 'vit'}, {'dataset': 'mnist', 'model': 'deit'}]
    """
    lists = [each if isinstance(each, list) else [each] for each in group.values()]
    return [dict(zip(group, values, strict=True)) for values in itertools.product(*lists)]


def _columns(name: str, columns: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    if columns == "losses":
        return [{"title": LOSS_TITLES[loss], "cell": {"loss": loss}, "keys": {"loss": loss}} for loss in LOSSES]
    if columns == "weights":
        return [{"title": f"λ = {w:g}", "cell": {"weight": w}, "keys": _range(name, w)} for w in WEIGHTS]
    assert isinstance(columns, list)
    return columns


def _block(place: dict[str, str], columns: list[dict[str, Any]], seeds: list[int], scale: ScaleName) -> Block:
    """The rows of one network; `below_paper` is what takes its place below the paper's scale."""
    dataset, model = place["dataset"], place["model"]
    head: dict[str, Any] = {"head": place["head"]} if "head" in place else {}
    shown = model if scale == "paper" else place.get("below_paper", model)

    def cells(column: dict[str, Any]) -> tuple[Cell, ...] | str:
        if hole := column.get("hole") or (model in CNN_NAMES and column.get("hole_of_cnns")):
            return str(hole)
        return tuple(Cell(dataset=dataset, model=shown, seed=seed, **head, **column["cell"]) for seed in seeds)

    return Block(
        header=(DATASETS[dataset], MODELS[shown] + (" + CalAttn" if head.get("head") == "calattn" else "")),
        keys={"dataset": dataset, "backbone": BACKBONES[model], **head},
        cells=tuple(map(cells, columns)),
    )


def _range(name: str, weight: float) -> dict[str, paper.Value] | None:
    """The range of λ under which the paper's table has this weight; None where it leaves it out."""
    ranges = {(row["lambda_min"], row["lambda_max"]) for row in paper.paper_table(name).rows}
    found = [(low, high) for low, high in ranges if float(str(low)) <= weight <= float(str(high))]
    return {"lambda_min": found[0][0], "lambda_max": found[0][1]} if found else None
