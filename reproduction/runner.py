"""The runner: one job for each cell without a result, by the same loop as `calattn sweep`; and what a job's process does.

`python -m reproduction.runner ORDER` trains, analyses and stores one cell, see `Work.order`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from calattn.engine.checkpoint import is_checkpoint_file
from calattn.files.predictions import MANIFEST
from calattn.runs.folder import RunFolder
from calattn.runs.runtime import Runtime
from calattn.runs.train import train_run
from calattn.sweeps.jobs import Job, JobEvent, Local, run_jobs
from calattn.sweeps.worker import EXPECTED, ended, obey_starter, reason_of, wait_for
from reproduction import ood
from reproduction.analysis import analyse
from reproduction.cells import GridCell, ScaleName, rules_of, spec_of
from reproduction.planned import folder_name
from reproduction.results import CellResult, Hole, ResultStore

ROOT = Path(__file__).parents[1]
RETRIES = 1  # of a worker that died


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """Where a cell is run and its result put. `keep`: its checkpoints stay. `cache`: corrupted images that processes share."""

    store: ResultStore
    runs: Path
    runtime: Runtime
    keep: bool = False
    jobs: int = 1
    cache: Path | None = None

    def order(self, cell: GridCell) -> str:
        """The work on a cell as text for a command line."""
        fields = dataclasses.asdict(self) | {"scale": self.store.scale, "store": self.store.folder.parent}
        return json.dumps(fields | {"cell": dataclasses.asdict(cell)}, default=str)


def read_order(text: str) -> tuple[GridCell, Work]:
    found = json.loads(text)
    runtime, root, cache = found["runtime"], found["runtime"]["data_root"], found["cache"]
    work = Work(
        store=ResultStore(Path(found["store"]), found["scale"]),
        runs=Path(found["runs"]),
        runtime=Runtime(**runtime | {"data_root": None if root is None else Path(root), "track": ()}),
        keep=found["keep"],
        jobs=found["jobs"],
        cache=None if cache is None else Path(cache),
    )
    return GridCell(**found["cell"]), work


# --- the runner --------------------------------------------------------------------------------------------------------


def is_done(cell: GridCell, work: Work) -> bool:
    """Whether the store has the cell's result, or what it came to by `until_epoch`.

    A result whose twin was not at hand is to be made again once there is one, to be compared with it.
    """
    found = work.store.get(cell)
    if isinstance(found, CellResult):
        has_twin = cell.twin != cell and (not is_done(cell.twin, work) or twin_of(cell, work) is not None)
        return bool(found.pair) or not has_twin
    last, partly = work.runtime.until_epoch, work.store.unfinished(cell)
    return last is not None and partly is not None and partly.run["epochs"] >= last


def run_cells(cells: Sequence[GridCell], work: Work, say: Callable[[str], None] = print) -> list[GridCell]:
    """Runs what is not done, `work.jobs` side by side, a head after its twin; returns what failed.

    However it ends, by Ctrl-C too, no worker outlives it; those that must stop early get the time to save.
    """
    todo = {cell.name: cell for cell in cells if not is_done(cell, work)}
    say(f"cells to run: {len(todo)}; done before: {len(cells) - len(todo)}")
    stopped = list[str]()

    def told(event: JobEvent) -> None:
        if event.state in ("done", "failed"):
            stopped.append(event.name)
            failure = f"failed: {_reason(todo[event.name], event.reason, work)}" if event.reason else "done"
            say(f"[{len(stopped)}/{len(todo)}] {event.name}: {failure}")
        elif event.state == "again":
            say(f"{event.name} starts again: {event.reason}")

    with tempfile.TemporaryDirectory(prefix="calattn-") as cache:
        ood.prepare(todo.values(), work.store.scale, root=work.runtime.data_root, cache=Path(cache))
        work = dataclasses.replace(work, cache=Path(cache), runtime=_with_threads(work))
        jobs = [_job(cell, work) for cell in todo.values()]
        failed = run_jobs(jobs, Local(work.jobs), retries=RETRIES, told=told)
    return [todo[name] for name in failed]


def _job(cell: GridCell, work: Work) -> Job:
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return Job(
        name=cell.name,
        command=("reproduction.runner", work.order(cell)),
        log=work.runs.absolute() / work.store.scale / "logs" / f"{cell.name}.log",
        environment={"PYTHONPATH": paths},
        after=() if cell.twin == cell else (cell.twin.name,),
    )


def _reason(cell: GridCell, reason: str, work: Work) -> str:
    """Why it failed. A worker stores that itself, unless it died."""
    found = work.store.get(cell)
    if not isinstance(found, Hole) or found.reason != reason:
        work.store.fail(cell, reason)
    return reason


def _with_threads(work: Work) -> Runtime:
    """Each worker gets its share of the cores."""
    threads = work.runtime.threads or max(1, (os.cpu_count() or 1) // work.jobs)
    return dataclasses.replace(work.runtime, threads=threads) if work.jobs > 1 else work.runtime


# --- its worker --------------------------------------------------------------------------------------------------------


def run_cell(cell: GridCell, work: Work) -> None:
    """Trains (or resumes), analyses and stores a cell. Why it has no result, where that was to be expected, is stored too."""
    try:
        _run_cell(cell, work)
    except EXPECTED as error:
        with contextlib.suppress(OSError):  # where the disk is full the reason cannot be kept either
            work.store.fail(cell, reason_of(error))
        raise


def _run_cell(cell: GridCell, work: Work) -> None:
    started, scale = time.monotonic(), work.store.scale
    partly = work.store.unfinished(cell)
    path = run_folder(cell, scale, work.runs)
    wait_for(path)
    folder = train_run(spec_of(cell, scale), path, runtime=work.runtime)
    scores = ood.score_run(folder, cell, scale, rules=rules_of(cell), runtime=work.runtime, cache=work.cache)
    result = analyse(folder, cell, scale, twin=twin_of(cell, work), ood=scores)
    sittings = 0.0 if partly is None else float(partly.run.get("seconds", 0.0))
    cost = {"seconds": round(sittings + time.monotonic() - started, 1), "side_by_side": work.jobs}
    work.store.put(dataclasses.replace(result, run=result.run | cost))
    if not work.keep and not result.unfinished:
        # The analysis of a cell with a head needs its twin's predictions and scores, which stay.
        for path in filter(is_checkpoint_file, list(folder.checkpoints_path.glob("*"))):
            path.unlink(missing_ok=True)


def run_folder(cell: GridCell, scale: ScaleName, runs: Path) -> Path:
    """`runs`/<scale>/<cell>-<hash>."""
    return Path(runs) / scale / folder_name(cell, scale)


def twin_of(cell: GridCell, work: Work) -> RunFolder | None:
    """The run without the head, where it is at hand, trained as far as the cell's own."""
    if cell.head == "none":
        return None
    folder, own = (RunFolder(run_folder(each, work.store.scale, work.runs)) for each in (cell.twin, cell))
    needed = [
        folder.predictions_path(split, rule) / MANIFEST for split in ("validation", "test") for rule in rules_of(cell)
    ]
    return folder if _epochs(folder) == _epochs(own) and all(path.is_file() for path in needed) else None


def _epochs(folder: RunFolder) -> int | None:
    progress = folder.progress()
    return None if progress is None else progress.epochs


if __name__ == "__main__":
    obey_starter()
    sys.exit(ended(lambda: run_cell(*read_order(sys.argv[1]))))
