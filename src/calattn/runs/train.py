"""`train_run`: a spec becomes a run folder."""

from __future__ import annotations

import functools
import itertools
import shutil
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import torch
from lightning_fabric import Fabric
from torch import Tensor

from calattn.data.loading import EvalLoader, TrainLoader
from calattn.data.splits import save_splits
from calattn.engine.checkpoint import CheckpointFolder
from calattn.engine.closing import Reader, Source, teach
from calattn.engine.fit import Reporter, Settings, Trainer
from calattn.engine.log import RunLog
from calattn.files.atomic import PathArg
from calattn.files.predictions import MANIFEST
from calattn.heads import Taught
from calattn.models.attach import CalibratedModel
from calattn.runs import build
from calattn.runs.classes import some
from calattn.runs.environment import describe_environment
from calattn.runs.folder import RunFolder, RunFolderError, read_json, write_json
from calattn.runs.interface import interface_of, write_interface
from calattn.runs.predict import check_own_classes, check_same_split, own_subjects, predict_run
from calattn.runs.runtime import Runtime, settled
from calattn.runs.spec import RunSpec
from calattn.runs.summary import read_summary, write_summary
from calattn.runs.trained_with import naming_plugins, plugins_used, warn_of_changed_plugins
from calattn.runs.trial import check_run
from calattn.runs.weights import digest
from calattn.types import ModelOutput

_BEGUN = "weights_sha256"  # in environment.json: of the file that `model.weights` names


class RunReporter(Reporter, Protocol):
    """Who is told how far a run is."""

    def decoded(self, what: str, done: int, total: int) -> None: ...

    def start(self, folder: RunFolder, *, epochs: int, updates_per_epoch: int, done: int, main: bool) -> None:
        """Told to every process; all else only to the `main` one."""

    def note(self, text: str) -> None:
        """What was decided that the spec had left open."""

    def teaching(self, what: str, done: int, total: int) -> None:
        """How far the closing phase is."""

    def predicted(self, count: int, total: int) -> None: ...

    def finished(self, folder: RunFolder, *, before: bool) -> None: ...


def train_run(
    spec: RunSpec,
    path: PathArg,
    *,
    runtime: Runtime | None = None,
    overwrite: bool = False,
    reporter: RunReporter | None = None,
) -> RunFolder:
    """Trains, or goes on training, in the folder `path`; then writes predictions and the summary.

    A folder that holds the same spec is resumed, one that is finished is left as it is. With `runtime.until_epoch` it may stop
    before the end: predictions and summary are then those of the epoch it got to, and a later call goes on.
    """
    with naming_plugins(RunFolder(path)):
        return _train_run(spec, path, runtime or Runtime(), overwrite=overwrite, reporter=reporter)


def _train_run(
    spec: RunSpec, path: PathArg, runtime: Runtime, *, overwrite: bool, reporter: RunReporter | None
) -> RunFolder:
    spec = settled(spec, runtime)
    fabric = runtime.fabric(spec.train.precision)
    main = fabric.is_global_zero
    told = reporter if main else None
    if overwrite:
        _refuse_to_lose_weights(RunFolder(path), spec)
    begun = None if overwrite else _as_begun(RunFolder(path), spec)
    spec = begun or spec
    if not overwrite:
        _refuse_other_weights(RunFolder(path), spec)
        if main:
            warn_of_changed_plugins(RunFolder(path))
    if not overwrite and is_finished(RunFolder(path), spec, until_epoch=runtime.until_epoch):
        if told is not None:
            told.finished(RunFolder(path), before=True)
        return RunFolder(path)
    found = build.load_data(spec, root=runtime.data_root, on_decode=None if told is None else told.decoded)
    model = build.build_model(
        spec,
        num_classes=found.train.num_classes,
        channels=found.dataset.channels,
        size=build.network_size(spec, found.train),
    )
    given, normalised = spec, build.with_pretrained_normalisation(spec, model, found.dataset)
    spec = begun or normalised
    check_run(spec, model, found)
    if main:
        _warn_of_untested_classes(found)
    folder = RunFolder.create_or_open(path, spec, overwrite=overwrite) if main else RunFolder(path)
    with folder:
        if main:
            _record(folder, spec, found)
            if normalised is not given:
                _tell_of_normalisation(spec, normalised, found, told)
            elif spec.train.epochs == 0 and told is not None:
                told.note(f"images are normalised by {_shown(*build.normalisation(spec, found.dataset))}")
        fabric.barrier()
        trainer = _trainer(spec, runtime, fabric, model, found, folder, told)
        trainer.resume()
        if reporter is not None:
            reporter.start(
                folder,
                epochs=spec.train.epochs,
                updates_per_epoch=trainer.updates_per_epoch,
                done=trainer.state.update,
                main=main,
            )
        moved = _fitted(trainer, folder)
        moved |= trainer.close(
            functools.partial(_head_for, spec=spec, runtime=runtime, fabric=fabric, found=found, told=told)
        )
        written = _predicted(spec, runtime, fabric, found, folder, told)
        if main:
            if moved:
                _remove_outdated(folder, keep=written)
            write_summary(folder, spec, model)
        if told is not None:
            told.finished(folder, before=False)
        fabric.barrier()
    return folder


def _fitted(trainer: Trainer, folder: RunFolder) -> bool:
    """Trains to the end; whether the weights are then other ones than those that the folder's predictions may be of."""
    since, before = trainer.state.update, folder.progress()
    trainer.fit()
    update = trainer.state.update
    return update != since or (before is not None and before.updates != update)


def _head_for(
    forward: Callable[[Tensor], ModelOutput],
    *,
    spec: RunSpec,
    runtime: Runtime,
    fabric: Fabric,
    found: build.RunData,
    told: RunReporter | None,
) -> Taught | None:
    """Reads the run's images with its trained network and teaches the head."""
    augment = build.build_augment(spec, found)
    reader = Reader(
        forward=forward,
        fabric=fabric,
        seed=spec.seed,
        batch_size=spec.evaluation.batch_size,
        workers=runtime.num_workers,
        told=None if told is None else told.teaching,
    )
    return teach(
        reader,
        Source(found.train, found.train_rows, augment),
        Source(found.validation, found.validation_rows, augment),
        build.lesson(spec),
    )


def _predicted(
    spec: RunSpec,
    runtime: Runtime,
    fabric: Fabric,
    found: build.RunData,
    folder: RunFolder,
    reporter: RunReporter | None,
) -> list[Path]:
    subjects, checkpoints = own_subjects(found), spec.evaluation.checkpoints
    total = sum(subject.count for subject in subjects) * len(checkpoints) // fabric.world_size
    return predict_run(
        folder,
        spec,
        subjects,
        checkpoints,
        fabric=fabric,
        runtime=runtime,
        interface=interface_of(spec, found),
        features=spec.evaluation.features,
        on_batch=None if reporter is None else functools.partial(reporter.predicted, total=total),
    )


def is_finished(folder: RunFolder, spec: RunSpec, *, until_epoch: int | None = None) -> bool:
    """Whether the folder holds this very spec's summary and the predictions it asks for: nothing is left to do."""
    wanted_epochs = spec.train.epochs if until_epoch is None else min(spec.train.epochs, until_epoch)
    if not folder.summary_path.is_file():
        return False
    try:
        summary = read_summary(folder)
    except RunFolderError:  # damaged: it is written again
        return False
    if not isinstance(summary, dict) or summary.get("spec") != spec.model_dump(mode="json"):
        return False
    if summary.get("epochs", 0) < wanted_epochs:
        return False
    wanted = itertools.product(("validation", "test"), spec.evaluation.checkpoints)
    return all((folder.predictions_path(split, rule) / MANIFEST).is_file() for split, rule in wanted)


def _remove_outdated(folder: RunFolder, *, keep: Iterable[Path]) -> None:
    """Predictions that were made when the run had not come so far would pass for those of the trained network."""
    kept = {path.name for path in keep}
    found = sorted(path for path in folder.all_predictions_path.glob("*") if (path / MANIFEST).is_file())
    outdated = [path for path in found if path.name not in kept]
    for path in outdated:
        shutil.rmtree(path)
    if outdated:
        names = ", ".join(path.name for path in outdated)
        warnings.warn(
            f"predictions of the run before it went on are removed: {names}; calattn predict makes them again",
            stacklevel=2,
        )


def _warn_of_untested_classes(found: build.RunData) -> None:
    counts = found.test.labels.bincount(minlength=found.test.num_classes)
    missing = [name for name, count in zip(found.class_names, counts.tolist(), strict=True) if count == 0]
    if missing:
        warnings.warn(
            f"the test images hold none of {len(missing)} of the {len(counts)} classes ({some(missing)}): what is measured on "
            "them says nothing about these; add some, or judge the run on other images (calattn predict --data)",
            stacklevel=3,
        )


def _as_begun(folder: RunFolder, spec: RunSpec) -> RunSpec | None:
    """A spec that leaves the normalisation to its pretrained weights, with the one that the run in the folder began with.

    None where there is no run, or the spec says it all. Runs of versions that took the data set's go on with that; if the run is
    of another spec, it differs in more, and is refused.
    """
    if not spec.model.pretrained or spec.data.mean is not None or not folder.spec_path.is_file():
        return None
    old = folder.spec().data
    return spec.model_copy(update={"data": spec.data.model_copy(update={"mean": old.mean, "std": old.std})})


def _tell_of_normalisation(
    taken: RunSpec, pretrained: RunSpec, found: build.RunData, reporter: RunReporter | None
) -> None:
    """Of a run that takes the mean and deviation of its pretrained weights, or that has begun without them."""
    mean, std = build.normalisation(pretrained, found.dataset)
    if taken is pretrained and reporter is not None:
        reporter.note(f"images are normalised as for the pretrained weights: {_shown(mean, std)}")
    if build.normalisation(taken, found.dataset) != (mean, std):
        warnings.warn(
            "the run began with the mean and deviation of the data set, not of the pretrained weights, and goes on so; "
            "--overwrite starts again with theirs",
            stacklevel=3,
        )


def _shown(mean: tuple[float, ...], std: tuple[float, ...]) -> str:
    first, second = (", ".join(f"{number:.4g}" for number in numbers) for numbers in (mean, std))
    return f"mean {first}, deviation {second} (data.mean and data.std set others)"


def _record(folder: RunFolder, spec: RunSpec, found: build.RunData) -> None:
    """What the run starts from; a run that goes on must find the data it began with."""
    if not folder.environment_path.exists():
        begun = {} if spec.model.weights is None else {_BEGUN: digest(Path(spec.model.weights))}
        write_json(describe_environment() | begun | plugins_used(), folder.environment_path)
    if folder.splits_path.exists():
        check_same_split(folder, found)
        check_own_classes(folder, spec, found)
    else:
        chosen = spec.data
        save_splits(
            folder.splits_path,
            None if found.validation is not found.train else found.validation_rows,
            found.train.labels,
            fraction=chosen.validation,
            seed=chosen.split_seed,
        )
    if not folder.interface_path.exists():
        write_interface(folder, interface_of(spec, found))


def _refuse_to_lose_weights(folder: RunFolder, spec: RunSpec) -> None:
    """A folder is removed before a new run begins in it: not with the weights that the new run is to start from."""
    weights = spec.model.weights
    if weights is not None and Path(weights).resolve().is_relative_to(folder.path.resolve()):
        raise RunFolderError(f"--overwrite would remove {weights}, from which the run starts; choose another --out")


def _refuse_other_weights(folder: RunFolder, spec: RunSpec) -> None:
    """The path is in the spec's hash, the content of the file is not: a run that began with other weights is another run."""
    if spec.model.weights is None or not folder.environment_path.is_file() or not Path(spec.model.weights).is_file():
        return
    known = read_json(folder.environment_path)
    begun = known.get(_BEGUN) if isinstance(known, dict) else None
    if begun is not None and begun != digest(Path(spec.model.weights)):
        raise RunFolderError(
            f"{folder.path} began with other weights than {spec.model.weights} holds now; put the file back, choose another "
            "--out, or --overwrite to start again here"
        )


def _trainer(
    spec: RunSpec,
    runtime: Runtime,
    fabric: Fabric,
    model: CalibratedModel,
    found: build.RunData,
    folder: RunFolder,
    reporter: Reporter | None,
) -> Trainer:
    compiled = spec.train.compile
    assert compiled != "auto", "the spec is settled"
    if spec.train.deterministic:
        torch.use_deterministic_algorithms(True)
    if fabric.device.type == "cuda" and spec.train.precision != "32-true":
        torch.set_float32_matmul_precision("high")
    if spec.train.sync_batchnorm and fabric.world_size > 1:
        from timm.layers import convert_sync_batchnorm  # torch's own drops the activations in timm's BatchNormAct2d

        model = convert_sync_batchnorm(model)
    return Trainer(
        fabric,
        model,
        build.build_loss(spec),
        build.optimizer_for(spec, model),
        schedule=build.schedule_for(spec),
        train=train_loader(spec, runtime, fabric, found),
        validation=eval_loader(spec, runtime, fabric, found),
        checkpoints=CheckpointFolder(folder.checkpoints_path, spec.hash),
        log=RunLog(folder.log_path, tensorboard=folder.tensorboard_path if runtime.tensorboard else None),
        settings=Settings(
            epochs=spec.train.epochs,
            until_epoch=runtime.until_epoch,
            seed=spec.seed,
            accumulate=spec.optimizer.accumulate,
            clip_norm=spec.optimizer.clip_norm,
            ema_decay=spec.optimizer.ema_decay,
            compile=compiled,
            channels_last=spec.train.channels_last,
            save_seconds=runtime.save_seconds,
        ),
        reporter=reporter,
    )


def train_loader(spec: RunSpec, runtime: Runtime, fabric: Fabric, found: build.RunData) -> TrainLoader:
    return TrainLoader(
        found.train,
        found.train_rows,
        build.build_augment(spec, found),
        seed=spec.seed,
        batch_size=spec.train.batch_size // spec.optimizer.accumulate,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
        device=fabric.device,
        workers=runtime.num_workers,
    )


def eval_loader(spec: RunSpec, runtime: Runtime, fabric: Fabric, found: build.RunData) -> EvalLoader:
    return EvalLoader(
        found.validation,
        found.validation_rows,
        build.build_augment(spec, found),
        batch_size=spec.evaluation.batch_size,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
        device=fabric.device,
        workers=runtime.num_workers,
    )
