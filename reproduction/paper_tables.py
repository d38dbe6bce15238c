"""Tables: our numbers beside the paper's, entry by entry, with a reason wherever there is none.

`tables.yaml` says which cells stand where, and which printed number stands beside them.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from calattn.rules import Rule
from calattn.types import MetricRow
from reproduction import paper
from reproduction.cells import BACKBONES, LOSSES, TRANSFORMERS, GridCell, ScaleName, combinations, spec_of
from reproduction.results import CellResult, Hole, Phase

_FILE: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "tables.yaml").read_text(encoding="utf-8"))
_NAMES: dict[str, dict[str, str]] = _FILE["names"]
DATASETS, MODELS, LOSS_TITLES = (_NAMES[each] for each in ("dataset", "model", "loss"))
DEFINITIONS: dict[str, str] = _FILE["definitions"]
LAYOUTS: tuple[str, ...] = tuple(_FILE["tables"])
WEIGHTS = tuple(tenth / 10 for tenth in range(11))

Found = Mapping[GridCell, CellResult | Hole]
Keys = Mapping[str, paper.Value] | None
"""What finds a number among the paper's rows; None where the paper has no such number."""

RULE_TITLES = {"last": "last epoch", "best-ece": "epoch of the lowest validation ECE"}
NOT_AT_THIS_SCALE = "not run at this scale"
_TEMPERED: dict[Phase, Literal["ece", "nll"]] = {"post": "ece", "post_nll": "nll"}


class Quantity(NamedTuple):
    """What is shown of a cell."""

    title: str
    metric: str
    phase: Phase = "pre"
    keys: Keys = None


class Column(NamedTuple):
    """What differs between the networks of a row. `phase` goes before the quantity's; `hole`: why there can be none."""

    title: str
    keys: Keys
    cell: Mapping[str, Any] = {}
    phase: Phase | None = None
    hole: str = ""
    hole_of_cnns: str = ""


class TableRows(NamedTuple):
    """Rows of one network: for each column its cells (several are seeds), or a reason why there can be none."""

    header: tuple[str, str]
    keys: Mapping[str, paper.Value]
    cells: tuple[tuple[GridCell, ...] | str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """A table before it is filled. `intervals`: entries have room for them. `paper_network`: what the paper's numbers are of,
    where the rows are of another network."""

    name: str
    title: str
    columns: tuple[Column, ...]
    blocks: tuple[TableRows, ...]
    quantities: tuple[Quantity, ...]
    notes: tuple[str, ...]
    intervals: bool
    paper_network: str

    def cells(self) -> tuple[GridCell, ...]:
        """Every cell that the table shows, once, in the order of the table."""
        groups = (group for block in self.blocks for group in block.cells if not isinstance(group, str))
        return tuple(dict.fromkeys(cell for group in groups for cell in group))


@functools.cache
def layout_of(name: str, scale: ScaleName) -> Layout:
    """The layout of a table; at the paper's scale the networks are all the paper's."""
    found = _FILE["tables"][name]
    columns = _columns(name, found["columns"])
    places = [place for group in found["rows"] for place in combinations(group)]
    return Layout(
        name=name,
        title=found["title"],
        columns=columns,
        blocks=tuple(_block(place, columns, found.get("seeds", [0]), scale) for place in places),
        quantities=(
            *(Quantity(**each) for each in found.get("quantities", [])),
            *(quantity(text, kind) for kind in ("stated", "printed", "beside") for text in found.get(kind, [])),
        ),
        notes=(*found.get("notes", []), *(found.get("notes_reduced", []) if scale == "reduced" else [])),
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


def _columns(name: str, columns: str | list[dict[str, Any]]) -> tuple[Column, ...]:
    if columns == "losses":
        return tuple(Column(LOSS_TITLES[loss], {"loss": loss}, {"loss": loss}) for loss in LOSSES)
    if columns == "weights":
        return tuple(Column(f"λ = {weight:g}", _range(name, weight), {"weight": weight}) for weight in WEIGHTS)
    return tuple(Column(**each) for each in columns)  # type: ignore[arg-type]


def _block(place: dict[str, str], columns: Sequence[Column], seeds: list[int], scale: ScaleName) -> TableRows:
    """The rows of one network; `below_paper` is what takes its place below the paper's scale."""
    dataset, model = place["dataset"], place["model"]
    head: dict[str, Any] = {"head": place["head"]} if "head" in place else {}
    shown = model if scale == "paper" else place.get("below_paper", model)

    def cells(column: Column) -> tuple[GridCell, ...] | str:
        if hole := column.hole or (model not in TRANSFORMERS and column.hole_of_cnns):
            return str(hole)
        return tuple(GridCell(dataset=dataset, model=shown, seed=seed, **head, **column.cell) for seed in seeds)

    return TableRows(
        header=(DATASETS[dataset], MODELS[shown] + (" + CalAttn" if head.get("head") == "calattn" else "")),
        keys={"dataset": dataset, "backbone": BACKBONES[model], **head},
        cells=tuple(map(cells, columns)),
    )


def _range(name: str, weight: float) -> Keys:
    """The range of λ under which the paper's table has this weight; None where it leaves it out."""
    ranges = {(row["lambda_min"], row["lambda_max"]) for row in paper.rows_of(name)}
    found = [(low, high) for low, high in ranges if float(str(low)) <= weight <= float(str(high))]
    return {"lambda_min": found[0][0], "lambda_max": found[0][1]} if found else None


class Measured(NamedTuple):
    """Where a number comes from."""

    result: CellResult
    row: MetricRow
    temperature: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """Our number (a fraction; NLL in nats), from one source or several seeds, and the paper's. `cells`: those planned."""

    sources: tuple[Measured, ...] = ()
    paper: float | None = None
    paper_spread: float | None = None
    paper_temperature: float | None = None
    hole: str | None = None
    planned: bool = True
    cells: tuple[GridCell, ...] = ()

    @property
    def ours(self) -> MetricRow | None:
        """The row itself; of several seeds their mean, whose interval is the spread of the seeds instead."""
        rows = [source.row for source in self.sources]
        if len(rows) < 2:
            return rows[0] if rows else None
        return MetricRow(name=rows[0].name, value=statistics.fmean(row.value for row in rows))

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds."""
        return statistics.stdev(source.row.value for source in self.sources) if len(self.sources) > 1 else None

    @property
    def temperature(self) -> float | None:
        known = [source.temperature for source in self.sources if source.temperature is not None]
        return statistics.fmean(known) if known else None


class Row(NamedTuple):
    """One quantity of one block, an entry for each column."""

    header: tuple[str, str]
    quantity: Quantity
    entries: tuple[Entry, ...]

    @property
    def planned(self) -> bool:
        return any(entry.planned for entry in self.entries)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaperTable:
    """A filled table under one checkpoint rule; rows and columns of which nothing was planned are kept, and marked."""

    layout: Layout
    scale: ScaleName
    rule: Rule
    rows: tuple[Row, ...]
    networks: str

    @property
    def title(self) -> str:
        # It must stand where nobody overlooks it: the rows are named after the paper's data sets, and are of digits.
        warning = "SMOKE TEST, tiny networks on digits whatever the row says. " if self.scale == "smoke" else ""
        return f"{warning}{self.layout.title}; checkpoint: {RULE_TITLES[self.rule]}"

    @property
    def shown_rows(self) -> list[Row]:
        """Those of which something is planned; of a table without such rows all, with the paper's numbers."""
        return [row for row in self.rows if row.planned] or list(self.rows)

    @property
    def shown_columns(self) -> list[int]:
        every, rows = range(len(self.layout.columns)), self.shown_rows
        return [i for i in every if any(row.entries[i].planned for row in rows)] or list(every)

    @property
    def results(self) -> dict[GridCell, CellResult]:
        """Everything that has a number in this table."""
        return {s.result.cell: s.result for row in self.rows for entry in row.entries for s in entry.sources}

    @property
    def left_out(self) -> list[str]:
        """The paper's rows and columns that this scale does not plan."""
        shown = {row.header for row in self.shown_rows}
        rows = dict.fromkeys(" ".join(row.header) for row in self.rows if row.header not in shown)
        return [*rows, *(c.title for i, c in enumerate(self.layout.columns) if i not in self.shown_columns)]


def fill(layout: Layout, found: Found, *, scale: ScaleName, rule: Rule) -> PaperTable:
    """The table under a checkpoint rule; what has no result, or was not planned at this scale and so is not in `found`, is a
    hole with its reason."""
    rows = []
    for block in layout.blocks:
        for each in layout.quantities:
            pairs = zip(layout.columns, block.cells, strict=True)
            entries = tuple(
                dataclasses.replace(
                    _theirs(layout.name, block.keys, column.keys, each.keys),
                    **_ours(cells, found, each.metric, rule, column.phase or each.phase),
                )
                for column, cells in pairs
            )
            rows.append(Row(block.header, each, entries))
    networks = _networks([cell for cell in layout.cells() if cell in found], scale)
    return PaperTable(layout=layout, scale=scale, rule=rule, rows=tuple(rows), networks=networks)


def fraction(row: Mapping[str, paper.Value], column: str = "value") -> float | None:
    """A printed number in our unit: per cent become a fraction, nats and MB stay.

    >>> fraction({"value": 4.38, "unit": "per cent"})
    0.0438
    """
    number = row.get(column)
    if number is None:
        return None
    assert isinstance(number, float), number
    return round(number / 100, 12) if row["unit"] == "per cent" else number


def _ours(cells: tuple[GridCell, ...] | str, found: Found, metric: str, rule: Rule, phase: Phase) -> dict[str, Any]:
    """What was measured, and why the rest was not."""
    if isinstance(cells, str):
        return {"hole": cells, "planned": False}
    wanted = tuple(cell for cell in cells if cell in found)
    if not wanted:
        return {"hole": NOT_AT_THIS_SCALE, "planned": False, "cells": cells}
    sources, holes = list[Measured](), list[str]()
    for result in (found[cell] for cell in wanted):
        if isinstance(result, Hole):
            holes.append(result.reason)
        elif (row := result.metric(metric, rule=rule, phase=phase)) is not None:
            objective = None if metric == "accuracy" else _TEMPERED.get(phase)
            sources.append(Measured(result, row, objective and result.temperature(rule=rule, objective=objective)))
        else:
            known = result.rules.get(rule, {}).get("phases", {}).get(phase, {})
            holes.append("no image that it could be measured on" if metric in known else f"{metric} was not measured")
    hole = "; ".join(dict.fromkeys(holes))
    if hole and sources:  # it rests on fewer seeds than planned
        hole = f"{len(sources)} of {len(wanted)} seeds; the others: {hole}"
    return {"sources": tuple(sources), "hole": hole or None, "cells": wanted}


def _theirs(name: str, *keys: Keys) -> Entry:
    known = [each for each in keys if each is not None]
    row = paper.find(name, **{k: v for each in known for k, v in each.items()}) if len(known) == len(keys) else None
    if row is None:
        return Entry()
    temperature = row.get("temperature")
    assert temperature is None or isinstance(temperature, float)
    return Entry(paper=fraction(row), paper_spread=fraction(row, "std"), paper_temperature=temperature)


def _networks(cells: Sequence[GridCell], scale: ScaleName) -> str:
    """Which networks the names stand for at this scale."""
    kinds: dict[str, dict[str, list[str]]] = {}
    for cell in cells:
        spec = spec_of(cell, scale)
        size = f"{spec.data.size} px" if spec.data.size else "native size"
        trained = f"{spec.model.backbone}, {size}, {spec.train.epochs} epochs of {spec.optimizer.name}"
        found = kinds.setdefault(cell.model, {}).setdefault(trained, [])
        found += [] if cell.dataset in found else [cell.dataset]
    shown = [
        f"{model} = " + " / ".join(text if len(each) == 1 else f"{text} ({', '.join(on)})" for text, on in each.items())
        for model, each in kinds.items()
    ]
    return f"Networks at this scale: {'; '.join(shown) or 'none planned'}."
