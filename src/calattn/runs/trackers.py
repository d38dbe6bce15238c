"""Trackers: the log of a run in TensorBoard, a CSV file, Weights & Biases or MLflow, by Lightning's loggers."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence

from lightning_fabric.loggers import CSVLogger, TensorBoardLogger

from calattn.engine.log import Logger
from calattn.registry import Registry
from calattn.runs.folder import RunFolder
from calattn.runs.spec import RunSpec

# name → the packages that it takes
TRACKERS: Registry[tuple[str, ...]] = Registry("tracker")
TRACKERS.add("tensorboard", ("tensorboard",))
TRACKERS.add("csv", ())
TRACKERS.add("wandb", ("lightning", "wandb"))
TRACKERS.add("mlflow", ("lightning", "mlflow"))


def check_trackers(wanted: Sequence[str | Logger]) -> None:
    """A name that is unknown, or a package that is missing, is told before the run and not after its first epoch."""
    for name in wanted:
        if not isinstance(name, str):
            continue
        missing = [package for package in TRACKERS[name] if importlib.util.find_spec(package) is None]
        if missing:
            raise ValueError(f"--track {name} needs {' and '.join(missing)}; pip install {' '.join(missing)}")


def loggers_of(
    wanted: Sequence[str | Logger], folder: RunFolder, spec: RunSpec
) -> Callable[[int | None], list[Logger]]:
    """What opens them once there is something to log, told the last epoch that stands when a run is resumed."""

    def opened(resumed_after: int | None) -> list[Logger]:
        return [_logger(each, folder, spec, resumed_after or 0) if isinstance(each, str) else each for each in wanted]

    return opened


def _logger(name: str, folder: RunFolder, spec: RunSpec, resumed_after: int) -> Logger:
    root, title = folder.trackers_path, spec.name or folder.path.resolve().name
    if name == "tensorboard":
        # With it, TensorBoard hides what an earlier attempt wrote for later epochs.
        return TensorBoardLogger(root, name, "", purge_step=resumed_after + 1)
    if name == "csv":  # a file for each start: the logger would remove what is there
        return CSVLogger(root, name, f"after-epoch-{resumed_after}", flush_logs_every_n_steps=1)
    from lightning.pytorch.loggers import MLFlowLogger, WandbLogger

    made: Logger
    if name == "wandb":
        root.mkdir(parents=True, exist_ok=True)
        made = WandbLogger(name=title, save_dir=root, id=f"{title}-{spec.hash}", project="calattn", resume="allow")
    else:
        where = os.environ.get("MLFLOW_TRACKING_URI") or (root / "mlruns").resolve().as_uri()
        made = MLFlowLogger("calattn", run_name=title, tracking_uri=where, tags={"spec_hash": spec.hash})
    made.log_hyperparams(spec.model_dump(mode="json"))
    return made
