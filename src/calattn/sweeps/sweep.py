"""A sweep: the runs of a grid in one folder, what is left to do of them, and what came out, as a table."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from calattn import plugins
from calattn.metrics import METRICS
from calattn.report.style import between, number
from calattn.report.table import Cell, Table
from calattn.runs.folder import RunFolder, RunFolderError
from calattn.runs.runtime import Runtime, settled
from calattn.runs.train import is_finished
from calattn.sweeps.grid import Run
from calattn.sweeps.jobs import Engine, Job, run_jobs
from calattn.sweeps.worker import order

MAIN = ("accuracy", "nll", "brier", "ece", "aurc")
_LOG_END = 1 << 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep:
    """`folder`/<run> is each run's folder, `folder`/logs/<run>.log what its process prints."""

    runs: Sequence[Run]
    folder: Path
    runtime: Runtime

    def path(self, name: str) -> Path:
        return self.folder.absolute() / name

    def todo(self) -> list[Run]:
        """The runs that are not finished; in doubt (no such data here, or another machine's "auto") a run's process decides."""
        return [run for run in self.runs if not self._finished(run)]

    def _finished(self, run: Run) -> bool:
        spec = run.spec()
        with contextlib.suppress(ValueError):
            spec = settled(spec, self.runtime)
        return is_finished(RunFolder(self.path(run.name)), spec)

    def epochs(self, name: str) -> int:
        """How many a run has trained, from the last line of its log."""
        with (
            contextlib.suppress(OSError, ValueError, AttributeError),
            RunFolder(self.path(name)).log_path.open("rb") as log,
        ):
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_END))
            *_, last, _ = log.read().split(b"\n")
            return int(json.loads(last).get("epoch", 0))
        return 0

    def train(self, runs: Sequence[Run], engine: Engine, *, jobs: int = 1, **more: Any) -> dict[str, str]:
        """Trains or resumes them; the reasons of those that failed, by name. `more` is for `run_jobs`."""
        root, threads = self.runtime.data_root, self.runtime.threads
        shared = max(1, (os.cpu_count() or 1) // jobs) if jobs > 1 else None
        runtime = dataclasses.replace(
            self.runtime, data_root=None if root is None else root.absolute(), threads=threads or shared
        )
        return run_jobs([self._job(run, runtime) for run in runs], engine, **more)

    def _job(self, run: Run, runtime: Runtime) -> Job:
        return Job(
            name=run.name,
            command=("calattn.sweeps.worker", order(run.spec(), self.path(run.name), runtime)),
            log=self.folder.absolute() / "logs" / f"{run.name}.log",
            environment={name: os.environ[name] for name in [plugins.VARIABLE] if name in os.environ},
        )

    def results(self, failed: Mapping[str, str], *, rule: str = "last") -> list[dict[str, Any]]:
        """Of each run its settings and, from its summary, the metrics of its test images, or else of its validation images."""
        return [self._result(run, failed.get(run.name), rule) for run in self.runs]

    def _result(self, run: Run, reason: str | None, rule: str) -> dict[str, Any]:
        about = {"name": run.name, "settings": dict(run.settings), "run": str(self.folder / run.name), "reason": reason}
        folder = RunFolder(self.path(run.name))
        try:
            summary = folder.summary()
            found = summary["results"][rule]
            split = "test" if "test" in found else "validation"
            metrics = {name: row if isinstance(row, dict) else {"value": row} for name, row in found[split].items()}
            return about | {"epochs": summary["epochs"], "split": split, "metrics": metrics}
        except RunFolderError:
            missing = "not finished"
        except (KeyError, TypeError, AttributeError):
            missing = f"{folder.summary_path} has no results of the rule {rule}"
        return about | {
            "reason": reason or missing,
            "epochs": self.epochs(run.name),
            "split": None,
            "metrics": {},
        }


def table_of(results: Sequence[Mapping[str, Any]], *, metrics: Sequence[str] = MAIN) -> Table:
    """Runs as rows, with dashes where a run has no results. Its records have all metrics, as fractions."""
    splits = sorted({each["split"] for each in results if each["split"] is not None})
    rows: list[list[str | Cell]] = [
        [each["name"], str(each["epochs"] or "–"), *(_cell(name, each["metrics"].get(name)) for name in metrics)]
        for each in results
    ]
    return Table(
        header=["", "epochs", *(METRICS.title(name) for name in metrics)],
        rows=rows,
        caption=f"per cent (NLL in nats) of the {' or '.join(splits)} images" if splits else "no run has results",
        records=_records(results),
        whole_names=True,
    )


def _cell(name: str, row: Mapping[str, Any] | None) -> Cell:
    return (
        Cell("–") if row is None else Cell(number(name, row["value"]), between(name, row.get("low"), row.get("high")))
    )


def _records(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same columns in all, as CSV has it."""
    settings = dict.fromkeys(key for each in results for key in each["settings"])
    measured = dict.fromkeys(name for each in results for name in each["metrics"])
    found = []
    for each in results:
        row = {"name": each["name"]} | {key: each["settings"].get(key) for key in settings}
        row |= {key: each[key] for key in ("epochs", "split", "reason")}
        for name in measured:
            values = each["metrics"].get(name, {})
            row |= {name: values.get("value"), f"{name}_low": values.get("low"), f"{name}_high": values.get("high")}
        found.append(row)
    return found
