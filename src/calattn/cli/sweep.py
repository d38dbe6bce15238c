"""`calattn sweep`: the runs of a grid file, here or on a Ray cluster, and their table."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from calattn.cli import options
from calattn.cli.console import note, print_json, progress, say
from calattn.cli.errors import FAILED, examples

if TYPE_CHECKING:
    from calattn.sweeps.jobs import Engine, JobEvent
    from calattn.sweeps.sweep import Sweep

_run, _where = (functools.partial(options.flag, panel) for panel in (options.RUN, options.WHERE))


@options.flat
def sweep(
    grid: Annotated[Path, typer.Argument(metavar="GRID.yaml", help="What all runs share, and what varies.")],
    out: Path | None = _run("--out", text="The folder of the runs; default: by the grid's name, under runs/."),
    overrides: list[str] | None = _run(
        "--set", metavar="KEY=VALUE", text="Change a key of all specs; may be repeated."
    ),
    only: str | None = _run("--only", text="Only runs whose names match, such as 'ours-*'."),
    plan: bool = _run("--plan", default=False, text="List the runs and how far they are; train nothing."),
    checkpoint: str = _run(
        "--checkpoint", default="last", text="The rule whose results are shown.", complete=options.RULE_NAMES
    ),
    where: options.Machine = options.MACHINE,
    jobs: int = _where("--jobs", default=1, text="Runs side by side on this machine.", least=1),
    retries: int = _where("--retries", default=2, text="How often a run whose process died is started again.", least=0),
    engine: options.EngineFlags = options.ENGINE,
    gpus: float = _where("--gpus", default=0, text="GPUs of a run on a Ray cluster, such as 0.5.", least=0),
    write: options.TableOut = None,
    json: options.Json = False,
) -> None:
    """Train all runs of a grid, each in its own folder and process; the same command resumes what was stopped.

    A run that fails is named and does not stop the others. The table at the end is made of the runs' summaries.
    """
    from calattn.cli.judgement import Judgement, check_outputs
    from calattn.sweeps.grid import chosen, read_grid

    check_outputs([grid], out=write)
    options.check_rule(checkpoint)
    if engine.is_ray:
        options.unused("is of this machine; on a cluster as many run as fit", jobs=jobs if jobs > 1 else None)
    else:
        options.unused("is of a Ray cluster; here each run has a whole one", gpus=gpus or None)
    runs = chosen(read_grid(grid, overrides or []), only)
    runtime = where.runtime()
    from calattn.sweeps.sweep import Sweep, table_of

    found = Sweep(runs=runs, folder=out or Path("runs") / grid.stem, runtime=runtime)
    if plan:
        _show_plan(found, as_json=json)
        return
    todo = found.todo()
    note(f"runs to train: {len(todo)}; finished before: {len(runs) - len(todo)}")
    failed = {}
    if todo:
        with _engine(engine, jobs=jobs, cpus=where.threads or 1, gpus=gpus) as made, progress() as bar:
            shown = _Shown(found, len(todo), bar)
            failed = found.train(todo, made, jobs=jobs, retries=retries, told=shown.told, tick=shown.tick)
    results = found.results(failed, rule=checkpoint)
    table = table_of(results)
    document = {"schema": 1, "command": "sweep", "folder": str(found.folder), "checkpoint": checkpoint, "runs": results}
    judgement = Judgement(table=table, written=table, document=document)
    judgement.show(as_json=json)
    judgement.write(write)
    for name, reason in failed.items():
        note(f"failed: {name}: {reason}")
    if failed:
        raise typer.Exit(FAILED)


sweep.epilog = examples(  # type: ignore[attr-defined]
    "calattn sweep grid.yaml --plan",
    "calattn sweep grid.yaml --jobs 2 --write results.csv",
    "calattn sweep grid.yaml --only 'ours-*' --set data.limit=200 --out runs/trial",
    "calattn sweep grid.yaml --engine ray --address auto --gpus 0.5",
)


@contextlib.contextmanager
def _engine(flags: options.EngineFlags, *, jobs: int, cpus: int, gpus: float) -> Iterator[Engine]:
    if flags.is_ray:
        from calattn.sweeps.on_ray import OnRay, cluster

        with cluster(flags.address) as ray:
            yield OnRay(ray, cpus=cpus, gpus=gpus)
    else:
        import torch

        from calattn.sweeps.jobs import GPUS, Local

        given = os.environ.get(GPUS)
        yield Local(jobs, gpus=given.split(",") if given else [str(each) for each in range(torch.cuda.device_count())])


def _show_plan(found: Sweep, *, as_json: bool) -> None:
    todo = {run.name for run in found.todo()}
    rows = [
        {
            "name": run.name,
            "done": run.name not in todo,
            "epochs": found.epochs(run.name),
            "settings": dict(run.settings),
        }
        for run in found.runs
    ]
    if as_json:
        print_json({"schema": 1, "command": "sweep", "plan": True, "folder": str(found.folder), "runs": rows})
        return
    for row in rows:
        far = f", {row['epochs']} epochs trained" if row["epochs"] and not row["done"] else ""
        say(f"{'done ' if row['done'] else 'to do'}  {row['name']}{far}")
    note(f"{len(todo)} to do, {len(rows) - len(todo)} done; in {found.folder}")


class _Shown:
    """What happens, in lines; on a terminal also a bar of each run that is under way."""

    def __init__(self, found: Sweep, total: int, bar: Any) -> None:
        self._sweep, self._total, self._ended, self._bar = found, total, 0, bar
        self._epochs = {run.name: run.spec().train.epochs for run in found.runs}
        self._under_way: dict[str, Any] = {}

    def _print(self, text: str) -> None:
        self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def told(self, event: JobEvent) -> None:
        if event.state == "started":
            self._under_way[event.name] = self._bar.add_task(escape(event.name), total=self._epochs[event.name])
            return
        self._bar.remove_task(self._under_way.pop(event.name))
        if event.state == "again":
            self._print(f"{event.name} starts again: {event.reason}")
            return
        self._ended += 1
        what = "done" if event.state == "done" else f"failed: {event.reason}"
        self._print(f"[{self._ended}/{self._total}] {event.name}: {what}")

    def tick(self) -> None:
        if not self._bar.disable:
            for name, task in self._under_way.items():
                self._bar.update(task, completed=self._sweep.epochs(name))
