"""`python -m reproduction`, from a checkout: trains what the paper's tables need, writes tables, figures and the report."""

from __future__ import annotations

import argparse
import fnmatch
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from calattn import data, plugins
from calattn.cli.errors import readers_may_leave
from calattn.data.sources.datasets import remedy
from calattn.data.sources.download import is_here
from calattn.files.atomic import atomic_write, check_writable
from calattn.runs.runtime import Runtime
from calattn.sweeps.jobs import FAILED, INTERRUPTED, TERMINATED
from reproduction.catalogue import EXPERIMENTS
from reproduction.cells import SCALES, GridCell, ScaleName, spec_of
from reproduction.main_page import write_report
from reproduction.planned import as_sweep, ordered_cells
from reproduction.results import ResultStore
from reproduction.runner import Work, is_done, run_cells

EXAMPLES = """examples:
  python -m reproduction                                    every table and figure, tiny networks, minutes
  python -m reproduction --scale reduced --plan             what would be trained?
  python -m reproduction ece --scale reduced --jobs 3       one table; three runs side by side
  python -m reproduction --scale reduced --no-train         only write what the results allow
"""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        "python -m reproduction", description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawTextHelpFormatter
    )
    add = made.add_argument
    add("names", nargs="*", metavar="NAME", help=f"tables and figures; without any, all: {', '.join(EXPERIMENTS)}")
    add("--scale", choices=tuple(SCALES), default="smoke", help="how much of the paper's protocol is run")
    add("--only", metavar="PATTERN", help="only cells whose names match, such as 'cifar10-deit-*'")
    add("--plan", action="store_true", help="list the cells and the data sets that are missing; run nothing")
    add("--write-grid", type=Path, metavar="FILE", help="write the cells as a grid for `calattn sweep`; run nothing")
    add("--no-train", action="store_true", help="only write what the results allow")
    add("--until-epoch", type=int, metavar="EPOCH", help="train no further; later the runs resume")
    add("--jobs", type=int, default=1, help="cells side by side")
    add("--keep", action="store_true", help="keep the checkpoints of analysed runs")
    add("--results", type=Path, default=Path("results/reproduce"), help="where results are kept, one JSON file a cell")
    add("--runs", type=Path, default=Path("runs/reproduce"), help="where runs are trained")
    add("--out", type=Path, default=Path("runs/reproduction"), help="where tables and figures are written, by scale")
    add("--report", type=Path, help="the file of the report; default: REPRODUCTION.md beside the tables")
    add("--accelerator", default="auto", help="auto, cpu, cuda or mps")
    add("--threads", type=int, help="CPU threads of each process")
    add("--data-root", type=Path, help="the folder of the data sets")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """0, or 1 where a cell failed; 2 for wrong usage, 130 and 143 when stopped, 141 when the reader left."""
    command = parser()
    asked = command.parse_args(argv)
    report = asked.report or asked.out / asked.scale / "REPRODUCTION.md"
    plugins.load()
    try:
        if asked.jobs < 1:
            raise ValueError(f"--jobs must be 1 or more, got {asked.jobs}")
        for name in asked.names:
            EXPERIMENTS[name]
        cells = _cells(asked.names, asked.scale, asked.only)
        for place in filter(None, (asked.results / asked.scale, asked.out / asked.scale, report, asked.write_grid)):
            check_writable(place)
    except (ValueError, OSError) as error:
        command.error(str(error))
    store = ResultStore(asked.results, asked.scale)
    places = {name: getattr(asked, name) for name in ("accelerator", "threads", "data_root", "until_epoch")}
    work = Work(store=store, runs=asked.runs, runtime=Runtime(**places), keep=asked.keep, jobs=asked.jobs)
    if asked.plan:
        _show_plan(cells, work)
        return 0
    if asked.write_grid is not None:
        with atomic_write(asked.write_grid) as path:
            path.write_text(as_sweep(cells, asked.scale), encoding="utf-8")
        print(
            f"calattn sweep {asked.write_grid} --out {asked.runs / asked.scale}   # then the same without --write-grid"
        )
        return 0
    failed = [] if asked.no_train else run_cells(cells, work, lambda line: print(line, file=sys.stderr, flush=True))
    for name in asked.names or EXPERIMENTS:
        for path in EXPERIMENTS[name].write(store, asked.out):
            print(path)
    if not asked.names:
        for path in write_report(store, report, folder=asked.out / asked.scale):
            print(path)
    return FAILED if failed else 0


def _cells(names: Sequence[str], scale: ScaleName, pattern: str | None) -> list[GridCell]:
    wanted = {cell for name in names for cell in EXPERIMENTS[name].cells(scale)}
    cells = [cell for cell in ordered_cells(scale) if cell in wanted or not names]
    found = [cell for cell in cells if pattern is None or fnmatch.fnmatchcase(cell.name, pattern)]
    if cells and not found:
        raise ValueError(f"no cell matches --only {pattern!r}; --plan lists them all")
    return found


def _show_plan(cells: Sequence[GridCell], work: Work) -> None:
    todo = [cell for cell in cells if not is_done(cell, work)]
    for cell in cells:
        print(f"{'to do' if cell in todo else 'done '}  {cell.name}")
    print(f"{len(todo)} to do, {len(cells) - len(todo)} done")
    root, needed = work.runtime.data_root, [spec_of(cell, work.store.scale).data.name for cell in todo]
    if not {"cifar10", "cifar100"}.isdisjoint(needed):  # whose cells are judged against foreign images too
        needed += ["svhn", *([] if is_here("cifar10_c", root=root) else ["cifar10"])]
    for name in dict.fromkeys(needed):
        if not is_here(name, root=root):
            print(f"{name} is not there; {remedy(data.describe(name), root)}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        with readers_may_leave() as outcome:
            outcome.code = main()
            sys.stdout.flush()
        sys.exit(outcome.code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
