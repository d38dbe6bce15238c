"""The worker: a process that trains, analyses and stores one cell. `python -m reproduction.worker ORDER`, see `Work.order`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import time
from pathlib import Path

from calattn.engine.checkpoint import is_checkpoint_file
from calattn.files.predictions import MANIFEST
from calattn.runs.folder import RunFolder
from calattn.runs.runtime import Runtime
from calattn.runs.train import train_run
from calattn.sweeps.worker import EXPECTED, ended, obey_starter, reason_of, wait_for
from reproduction.analysis import analyse
from reproduction.cells import Cell, ScaleName, rules_of, spec_of
from reproduction.grid import folder_name
from reproduction.ood import score_run
from reproduction.results import ResultStore


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """Where a cell is run and its result put. `keep`: its checkpoints stay. `cache`: corrupted images that processes share."""

    store: ResultStore
    runs: Path
    runtime: Runtime
    keep: bool = False
    jobs: int = 1
    cache: Path | None = None

    def order(self, cell: Cell) -> str:
        """The work on a cell as text for a command line."""
        fields = dataclasses.asdict(self) | {"scale": self.store.scale, "store": self.store.folder.parent}
        return json.dumps(fields | {"cell": dataclasses.asdict(cell)}, default=str)


def read_order(text: str) -> tuple[Cell, Work]:
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
    return Cell(**found["cell"]), work


def run_cell(cell: Cell, work: Work) -> None:
    """Trains (or resumes), analyses and stores a cell. Why it has no result, where that was to be expected, is stored too."""
    try:
        _run_cell(cell, work)
    except EXPECTED as error:
        with contextlib.suppress(OSError):  # where the disk is full the reason cannot be kept either
            work.store.fail(cell, reason_of(error))
        raise


def _run_cell(cell: Cell, work: Work) -> None:
    started, scale = time.monotonic(), work.store.scale
    partly = work.store.unfinished(cell)
    path = run_folder(cell, scale, work.runs)
    wait_for(path)
    folder = train_run(spec_of(cell, scale), path, runtime=work.runtime)
    scores = score_run(folder, cell, scale, rules=rules_of(cell), runtime=work.runtime, cache=work.cache)
    result = analyse(folder, cell, scale, twin=twin_of(cell, work), ood=scores)
    sittings = 0.0 if partly is None else float(partly.run.get("seconds", 0.0))
    cost = {"seconds": round(sittings + time.monotonic() - started, 1), "side_by_side": work.jobs}
    work.store.put(dataclasses.replace(result, run=result.run | cost))
    if not work.keep and not result.unfinished:
        # The analysis of a cell with a head needs its twin's predictions and scores, which stay.
        for path in filter(is_checkpoint_file, list(folder.checkpoints_path.glob("*"))):
            path.unlink(missing_ok=True)


def run_folder(cell: Cell, scale: ScaleName, runs: Path) -> Path:
    """`runs`/<scale>/<cell>-<hash>."""
    return Path(runs) / scale / folder_name(cell, scale)


def twin_of(cell: Cell, work: Work) -> RunFolder | None:
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
