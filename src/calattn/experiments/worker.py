"""The worker: a process that runs the cells it is given on stdin and says on stdout, a line of JSON each, how they ended.

`python -m calattn.experiments.worker ORDER`, where ORDER is what `order` gives; `calattn reproduce --jobs` starts it.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import signal
import sys
from pathlib import Path

from calattn import plugins
from calattn.engine.errors import Interrupted
from calattn.experiments.cells import Cell
from calattn.experiments.grid import Outcome, Work, run_cell
from calattn.experiments.results import ResultStore
from calattn.runs.runtime import Runtime

_TERMINATED, _INTERRUPTED = 143, 130


def order(work: Work) -> str:
    """How a worker is to work, as text for its command line."""
    runtime = dataclasses.asdict(work.runtime)
    root = work.runtime.data_root
    return json.dumps(
        {
            "scale": work.store.scale,
            "results": str(work.store.folder.parent),
            "runs": str(work.runs),
            "runtime": runtime | {"data_root": None if root is None else str(root)},
            "keep": work.keep,
            "jobs": work.jobs,
            "cache": None if work.cache is None else str(work.cache),
        }
    )


def read_order(text: str) -> Work:
    found = json.loads(text)
    runtime, root, cache = found["runtime"], found["runtime"]["data_root"], found["cache"]
    return Work(
        store=ResultStore(Path(found["results"]), found["scale"]),
        runs=Path(found["runs"]),
        runtime=Runtime(**runtime | {"data_root": None if root is None else Path(root)}),
        keep=found["keep"],
        jobs=found["jobs"],
        cache=None if cache is None else Path(cache),
    )


def cell_line(cell: Cell) -> str:
    return json.dumps(dataclasses.asdict(cell)) + "\n"


def report_line(outcome: Outcome) -> str:
    return json.dumps(dataclasses.asdict(outcome))


def read_report(line: str) -> Outcome:
    found = json.loads(line)
    return Outcome(**found | {"cell": Cell(**found["cell"])})


def main(text: str) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    reports, sys.stdout = sys.stdout, sys.stderr  # whatever a library prints must not come between the reports
    cells = os.fdopen(os.dup(sys.stdin.fileno()), encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())  # nor may a library's process read the cells
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    plugins.load()  # those of the command that started this process
    work = read_order(text)
    try:
        for line in cells:
            cell = Cell(**json.loads(line))
            print(f"{cell.name}", file=sys.stderr, flush=True)
            print(report_line(run_cell(cell, work)), file=reports, flush=True)
    except Interrupted as error:
        print(error, file=sys.stderr)
        return 128 + int(error.signal)
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
