"""Tables: our numbers beside the paper's, entry by entry, with a reason wherever there is none.

`tables.yaml` says which cells stand where, and which printed number stands beside them.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml

from calattn.rules import Rule
from calattn.types import MetricRow
from reproduction import paper
from reproduction.cells import BACKBONES, LOSSES, TRANSFORMERS, Cell, ScaleName, combinations, spec_of
from reproduction.results import CellResult, Hole, Phase

_FILE: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "tables.yaml").read_text(encoding="utf-8"))
_NAMES: dict[str, dict[str, str]] = _FILE["names"]
DATASETS, MODELS, LOSS_TITLES = (_NAMES[each] for each in ("dataset", "model", "loss"))
DEFINITIONS: dict[str, str] = _FILE["definitions"]
LAYOUTS: tuple[str, ...] = tuple(_FILE["tables"])
WEIGHTS = tuple(tenth / 10 for tenth in range(11))

Found = Mapping[Cell, CellResult | Hole]

RULE_TITLES = {"last": "last epoch", "best-ece": "epoch of the lowest validation ECE"}
OOD_SETS = ("svhn", "cifar10_c")
NOT_AT_THIS_SCALE = "not run at this scale"
_TEMPERED: dict[Phase, Literal["ece", "nll"]] = {"post": "ece", "post_nll": "nll"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quantity:
    """What is shown of a cell. `keys` finds it among the paper's rows; None where the paper has no such number."""

    title: str
    metric: str
    phase: Phase = "pre"
    keys: Mapping[str, paper.Value] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table; its `phase`, where given, goes before the quantity's."""

    title: str
    keys: Mapping[str, paper.Value] | None = dataclasses.field(default_factory=dict)
    phase: Phase | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """Rows of one network: for each column its cells (several are seeds), or a reason why there can be none."""

    header: tuple[str, ...]
    keys: Mapping[str, paper.Value] | None
    cells: tuple[tuple[Cell, ...] | str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """A table before it is filled. `notes` are for this table alone; `intervals` says whether entries have room for them.
    `paper_network`: what the paper's numbers are of, where the rows are of another network."""

    name: str
    title: str
    columns: tuple[Column, ...]
    blocks: tuple[Block, ...]
    quantities: tuple[Quantity, ...]
    notes: tuple[str, ...] = ()
    intervals: bool = False
    paper_network: str = ""

    def cells(self) -> tuple[Cell, ...]:
        """Every cell that the table shows, once, in the order of the table."""
        groups = (group for block in self.blocks for group in block.cells if not isinstance(group, str))
        return tuple(dict.fromkeys(cell for group in groups for cell in group))


@functools.cache
def layout_of(name: str, scale: ScaleName) -> Layout:
    """The layout of a table; at the paper's scale the networks are all the paper's."""
    found = _FILE["tables"][name]
    columns = _columns(name, found["columns"])
    places = [place for group in found["rows"] for place in combinations(group)]
    notes = found.get("notes", []) + (found.get("notes_reduced", []) if scale == "reduced" else [])
    return Layout(
        name=name,
        title=found["title"],
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
        if hole := column.get("hole") or (model not in TRANSFORMERS and column.get("hole_of_cnns")):
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """Where a number comes from: the cell, the hash of its spec, and what was measured."""

    cell: Cell
    cell_hash: str
    row: MetricRow


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """Our number (a fraction; NLL in nats) and the paper's. Of several seeds: mean, and `spread`, the standard deviation."""

    ours: MetricRow | None = None
    spread: float | None = None
    temperature: float | None = None
    paper: float | None = None
    paper_spread: float | None = None
    paper_temperature: float | None = None
    hole: str | None = None
    planned: bool = True
    sources: tuple[Source, ...] = ()
    cells: tuple[Cell, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One quantity of one block, an entry for each column."""

    header: tuple[str, ...]
    quantity: Quantity
    entries: tuple[Entry, ...]

    @property
    def planned(self) -> bool:
        return any(entry.planned for entry in self.entries)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """A filled table under one checkpoint rule; rows and columns of which nothing was planned are kept, and marked."""

    layout: Layout
    scale: ScaleName
    rule: Rule | None
    title: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    @property
    def shown_rows(self) -> list[Row]:
        """Those of which something is planned; of a table without such rows all, with the paper's numbers."""
        return [row for row in self.rows if row.planned] or list(self.rows)

    @property
    def shown_columns(self) -> list[int]:
        every, rows = range(len(self.layout.columns)), self.shown_rows
        return [i for i in every if any(row.entries[i].planned for row in rows)] or list(every)

    @property
    def sources(self) -> dict[str, str]:
        """Cell → hash of everything that has a number in this table."""
        entries = (entry for row in self.rows for entry in row.entries)
        return {source.cell.name: source.cell_hash for entry in entries for source in entry.sources}

    @property
    def left_out(self) -> list[str]:
        """The paper's rows and columns that this scale does not plan."""
        shown = {row.header for row in self.shown_rows}
        rows = dict.fromkeys(" ".join(row.header) for row in self.rows if row.header not in shown)
        columns = [c.title for i, c in enumerate(self.layout.columns) if i not in self.shown_columns] if shown else []
        return [*rows, *columns]


def fill(layout: Layout, found: Found, *, scale: ScaleName, rule: Rule, planned: Collection[Cell]) -> Table:
    """The table under a checkpoint rule; what was not planned at this scale, or has no result, is a hole with its reason."""
    rows = []
    for block in layout.blocks:
        for quantity in layout.quantities:
            entries = tuple(
                _entry(layout, block, quantity, i, found, rule=rule, planned=planned)
                for i in range(len(layout.columns))
            )
            rows.append(Row(header=block.header, quantity=quantity, entries=entries))
    return Table(
        layout=layout,
        scale=scale,
        rule=rule,
        title=f"{_no_evidence(scale)}{layout.title}; checkpoint: {RULE_TITLES[rule]}",
        rows=tuple(rows),
        notes=(*layout.notes, _networks(layout, scale, planned)),
    )


def _no_evidence(scale: ScaleName) -> str:
    """What must stand where nobody overlooks it: the rows are named after the paper's data sets, and are of digits."""
    return "SMOKE TEST, tiny networks on digits whatever the row says. " if scale == "smoke" else ""


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


def measured(result: CellResult, metric: str, *, rule: Rule, phase: Phase) -> MetricRow | None:
    """A metric of the test images, an OOD AUROC, or the share of parameters that the head adds."""
    if metric in OOD_SETS:
        return result.ood(metric, rule=rule)
    if metric == "parameters_added":
        counts = result.run["parameters"]
        return MetricRow(name=metric, value=counts["head"] / counts["backbone"])
    return result.metric(metric, rule=rule, phase=phase)


def _entry(
    layout: Layout, block: Block, quantity: Quantity, place: int, found: Found, *, rule: Rule, planned: Collection[Cell]
) -> Entry:
    column, cells = layout.columns[place], block.cells[place]
    theirs = _theirs(layout.name, block, column, quantity)
    if isinstance(cells, str):
        return dataclasses.replace(theirs, hole=cells, planned=False)
    if not any(cell in planned for cell in cells):
        return dataclasses.replace(theirs, hole=NOT_AT_THIS_SCALE, planned=False, cells=cells)
    wanted = [cell for cell in cells if cell in planned]
    phase = column.phase or quantity.phase
    sources, holes = _sources([found[cell] for cell in wanted], quantity.metric, rule, phase)
    temperatures = [_temperature(found[source.cell], rule, phase) for source in sources]
    known = [temperature for temperature in temperatures if temperature is not None]
    return dataclasses.replace(
        theirs,
        ours=_mean([source.row for source in sources]),
        spread=statistics.stdev([s.row.value for s in sources]) if len(sources) > 1 else None,
        temperature=statistics.fmean(known) if known and quantity.metric != "accuracy" else None,
        hole=_hole(holes, len(sources), len(wanted)),
        sources=tuple(sources),
        cells=tuple(wanted),
    )


def _theirs(name: str, block: Block, column: Column, quantity: Quantity) -> Entry:
    if block.keys is None or column.keys is None or quantity.keys is None:
        return Entry()
    row = paper.find(name, **block.keys, **column.keys, **quantity.keys)
    if row is None:
        return Entry()
    temperature = row.get("temperature")
    assert temperature is None or isinstance(temperature, float)
    return Entry(paper=fraction(row), paper_spread=fraction(row, "std"), paper_temperature=temperature)


def _sources(
    found: Sequence[CellResult | Hole], metric: str, rule: Rule, phase: Phase
) -> tuple[list[Source], list[str]]:
    """What was measured, and why the rest was not."""
    sources, holes = [], []
    for result in found:
        if isinstance(result, Hole):
            holes.append(result.reason)
            continue
        row = measured(result, metric, rule=rule, phase=phase)
        if row is None:
            known = result.rules.get(rule, {}).get("phases", {}).get(phase, {})
            holes.append("no image that it could be measured on" if metric in known else f"{metric} was not measured")
        else:
            sources.append(Source(cell=result.cell, cell_hash=result.cell_hash, row=row))
    return sources, holes


def _hole(reasons: Sequence[str], measured: int, wanted: int) -> str | None:
    """Why a number is missing, or rests on fewer seeds than planned."""
    text = "; ".join(dict.fromkeys(reasons))
    return f"{measured} of {wanted} seeds; the others: {text}" if text and measured else text or None


def _mean(rows: Sequence[MetricRow]) -> MetricRow | None:
    """The row itself; of several seeds their mean, whose interval is the spread of the seeds instead."""
    if len(rows) < 2:
        return rows[0] if rows else None
    return MetricRow(name=rows[0].name, value=statistics.fmean(row.value for row in rows))


def _temperature(result: CellResult | Hole, rule: Rule, phase: Phase) -> float | None:
    assert isinstance(result, CellResult)
    objective = _TEMPERED.get(phase)
    return None if objective is None else result.temperature(rule=rule, objective=objective)


def _networks(layout: Layout, scale: ScaleName, planned: Collection[Cell]) -> str:
    """Which networks the names stand for at this scale."""
    kinds: dict[str, dict[str, list[str]]] = {}
    for cell in (cell for cell in layout.cells() if cell in planned):
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
