"""`calattn reproduce`."""

from __future__ import annotations

import dataclasses
import enum
import fnmatch
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from calattn.cli import completion, options
from calattn.cli.console import errors_to, note, print_json, results_to
from calattn.cli.errors import FAILED, examples

_RUNS = "Which runs"
ALL, REPORT = "all", "report"
REPORT_FILE = "REPRODUCTION.md"


class Scale(enum.StrEnum):
    smoke = "smoke"
    reduced = "reduced"
    paper = "paper"


@options.flat
def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            metavar="TABLE|FIGURE|all|report",
            help="A table or figure of the paper, such as ece or reliability; all of them; or only the report on its claims.",
            autocompletion=completion.names("calattn.experiments.catalogue:EXPERIMENTS", ALL, REPORT),
        ),
    ],
    scale: Annotated[
        Scale,
        typer.Option(
            help="How much of the paper's protocol: tiny networks on digits, native resolution for 60 epochs, or all of it.",
            rich_help_panel=_RUNS,
        ),
    ] = Scale.smoke,
    plan: Annotated[
        bool,
        typer.Option("--plan", help="Show the runs and an estimate of their time; run nothing.", rich_help_panel=_RUNS),
    ] = False,
    no_train: Annotated[
        bool,
        typer.Option("--no-train", help="Only write what the results allow; train nothing.", rich_help_panel=_RUNS),
    ] = False,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN", help="Only cells whose names match, such as 'cifar10-deit-*'.", rich_help_panel=_RUNS
        ),
    ] = None,
    time_budget: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="SECONDS", help="Start no cell that would not end within it.", rich_help_panel=_RUNS
        ),
    ] = None,
    until_epoch: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="EPOCH",
            help="Train no further than this and keep what comes out as unfinished; later the runs go on.",
            rich_help_panel=_RUNS,
        ),
    ] = None,
    results: Annotated[Path, typer.Option(help="Where results are kept: one JSON file a cell, by scale.")] = Path(
        "results/reproduce"
    ),
    runs: Annotated[Path, typer.Option(help="Where runs are trained; checkpoints go when a cell is analysed.")] = Path(
        "runs/reproduce"
    ),
    out: Annotated[Path, typer.Option(help="Where tables and figures are written, in a folder of the scale.")] = Path(
        "reproduction"
    ),
    report: Annotated[
        Path | None,
        typer.Option(help="The file of the report on the claims; default: REPRODUCTION.md beside the tables."),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the checkpoints of analysed runs.", rich_help_panel=_RUNS)
    ] = False,
    jobs: Annotated[
        int, typer.Option(min=1, help="Processes side by side on the device.", rich_help_panel=options.WHERE)
    ] = 1,
    where: options.Machine = options.MACHINE,
    json: options.Json = False,
) -> None:
    """Regenerate a table or figure of the paper: our number beside theirs.

    A cell is one trained network. Cells whose results are there (same
    spec) are not run again; the others are trained, analysed and stored.
    A cell that fails leaves a hole with its reason, and the rest goes on.
    Interrupted, the same command goes on where it stopped.
    """
    from calattn.experiments import catalogue
    from calattn.experiments.results import ResultStore
    from calattn.files.atomic import check_writable

    chosen = _experiments(name)
    store = ResultStore(results, scale.value)
    cells: Sequence[Any] = ()
    if name == ALL:
        cells = catalogue.ordered_cells(scale.value)
    elif name != REPORT:
        cells = chosen[0].cells(scale.value)
    cells = _matching(cells, only)
    document: dict[str, Any] = {"schema": 1, "command": "reproduce", "name": name, "scale": scale.value}
    if plan:
        _show_plan(cells, store, document, until_epoch=until_epoch, data_root=where.data_root, as_json=json)
        return
    report = report or out / scale.value / REPORT_FILE
    for place in (results / scale.value, out / scale.value, report):
        check_writable(place)
    runtime = dataclasses.replace(where.runtime(), until_epoch=until_epoch)
    failed = False
    if cells and not no_train:
        grid = _run(cells, store, runs, runtime, jobs=jobs, keep=keep, budget=time_budget)
        document["grid"] = grid.as_dict()
        failed = bool(grid.failed)
    written = _write(name, chosen, store, out, report, show=not json)
    if json:
        print_json(document | {"holes": _holes(cells, store), "written": [str(path) for path in written]})
    else:
        for path in written:
            results_to().print(str(path), markup=False, soft_wrap=True)
    if failed:
        raise typer.Exit(FAILED)


def _experiments(name: str) -> list[Any]:
    from calattn.experiments.catalogue import EXPERIMENTS
    from calattn.registry import UnknownName

    if name == REPORT:
        return []
    if name == ALL:
        return list(EXPERIMENTS.values())
    try:
        return [EXPERIMENTS[name]]
    except UnknownName as error:
        raise UnknownName(f"{error}, {ALL}, {REPORT}") from None


def _matching(cells: Sequence[Any], pattern: str | None) -> list[Any]:
    found = [cell for cell in cells if pattern is None or fnmatch.fnmatchcase(cell.name, pattern)]
    if cells and not found:
        raise ValueError(
            f"no cell matches --only {pattern!r}; the first is called {cells[0].name}; --plan lists them all"
        )
    return found


def _show_plan(
    cells: Sequence[Any],
    store: Any,
    document: dict[str, Any],
    *,
    until_epoch: int | None,
    data_root: Path | None,
    as_json: bool,
) -> None:
    import torch

    from calattn.experiments.needs import missing_data
    from calattn.experiments.plan import plan
    from calattn.runs.durations import duration

    found = plan(cells, store.scale, store, until_epoch=until_epoch)
    missing = missing_data(found.todo, store.scale, root=data_root)
    cuda = torch.cuda.is_available()
    if as_json:
        here = {"cuda_here": cuda, "missing_data": [dataclasses.asdict(each) for each in missing]}
        print_json(document | {"plan": found.as_dict() | here})
        return
    lines = [f"to do  {duration(found.seconds[cell]):>8}  {cell.name}" for cell in found.todo]
    lines += [f"done             {cell.name}" for cell in found.done]
    lines.append(f"{len(found.todo)} to do, {len(found.done)} done; about {duration(found.total)} ({found.basis})")
    if found.gpus and store.scale != "smoke" and not cuda:
        whose = " and ".join("an H200" if name == "NVIDIA H200" else name for name in found.gpus)
        lines.append(
            f"these are times of {whose}, and this machine has no CUDA GPU: here it would take many times as long"
        )
    lines += [each.text for each in missing]
    for line in lines:
        results_to().print(line, markup=False, soft_wrap=True)


def _run(
    cells: Sequence[Any], store: Any, runs: Path, runtime: Any, *, jobs: int, keep: bool, budget: float | None
) -> Any:
    from calattn.cli.grid_progress import GridProgress
    from calattn.experiments.grid import run_cells
    from calattn.runs.durations import duration

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it announces every process
    with GridProgress(errors_to(), jobs=jobs) as reporter:
        grid = run_cells(
            cells,
            store.scale,
            store=store,
            runs=runs,
            runtime=runtime,
            jobs=jobs,
            keep=keep,
            budget=budget,
            reporter=reporter,
        )
    if grid.skipped:
        note(f"{_cells(grid.skipped)} {'was' if len(grid.skipped) == 1 else 'were'} done before")
    if grid.seconds_a_cell is not None:
        side = f", {grid.jobs} side by side" if grid.jobs > 1 else ""
        note(
            f"{_cells(grid.outcomes)} in {duration(grid.seconds)}{side}: {duration(grid.seconds_a_cell)} of the device each"
        )
    if grid.left_out:
        note(f"{_cells(grid.left_out)} did not fit into --time-budget {budget:g}, from {grid.left_out[0].name} on")
    return grid


def _cells(those: Sequence[Any]) -> str:
    return f"{len(those)} {'cell' if len(those) == 1 else 'cells'}"


def _holes(cells: Sequence[Any], store: Any) -> dict[str, str]:
    from calattn.experiments.results import Hole

    found = ((cell, store.get(cell)) for cell in cells)
    return {cell.name: result.reason for cell, result in found if isinstance(result, Hole)}


def _write(name: str, chosen: Sequence[Any], store: Any, out: Path, report: Path, *, show: bool) -> list[Path]:
    from calattn.experiments.reproduction import write_report

    written: list[Path] = []
    for experiment in chosen:
        if show and name != ALL:
            results_to().print(experiment.show(store))
        written += experiment.write(store, out)
    if name in (ALL, REPORT):
        write_report(store, report, tables=out / store.scale)
        written.append(report)
    return written


reproduce.epilog = examples(  # type: ignore[attr-defined]
    "calattn reproduce all                              every table and figure, tiny, minutes",
    "calattn reproduce ece --scale reduced --plan       what would it cost?",
    "calattn reproduce all --scale reduced --jobs 3     three runs side by side on the GPU",
    "calattn reproduce report --scale reduced           the verdicts, from the results that are there",
)
