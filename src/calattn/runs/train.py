"""`train_run`: a spec becomes a run folder."""

from __future__ import annotations

import dataclasses
import functools
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
from calattn.engine.closing import LessonImages, Reader, teach
from calattn.engine.fit import Reporter, Settings, Setup, Trainer
from calattn.engine.heartbeat import Heartbeat
from calattn.engine.log import RunLog
from calattn.files.atomic import PathArg
from calattn.files.predictions import MANIFEST
from calattn.heads import Taught
from calattn.models.attach import CalibratedModel
from calattn.posthoc.newton import nll_optimum
from calattn.runs import build
from calattn.runs.build import some
from calattn.runs.environment import describe_environment, naming_plugins, warn_of_changed_plugins
from calattn.runs.facts import OWN_SPLITS
from calattn.runs.folder import RunFolder, RunFolderError, read_json, write_json
from calattn.runs.interface import interface_of
from calattn.runs.plan import check_run
from calattn.runs.predict import Predictor, check_own_classes, check_same_split, own_images
from calattn.runs.runtime import Runtime, settled
from calattn.runs.spec import RunSpec
from calattn.runs.summary import write_summary
from calattn.runs.trackers import check_trackers, loggers_of
from calattn.runs.weights import digest
from calattn.types import ModelOutput, Predictions

_BEGUN = "weights_sha256"  # in environment.json: of the file that `model.weights` names


class RunReporter(Reporter, Protocol):
    """Who is told how far a run is."""

    def preparing(self, what: str) -> None:
        """What is done before training starts, which may take seconds."""

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
    """Trains, or resumes training, in the folder `path`; then writes predictions and the summary.

    A folder that holds the same spec is resumed, one that is finished is left as it is. With `runtime.until_epoch` it may stop
    before the end: predictions and summary are then those of the epoch it got to, and a later call resumes.
    """
    with naming_plugins(RunFolder(path)):
        return _train_run(spec, path, runtime or Runtime(), overwrite=overwrite, reporter=reporter)


def _train_run(
    spec: RunSpec, path: PathArg, runtime: Runtime, *, overwrite: bool, reporter: RunReporter | None
) -> RunFolder:
    check_trackers(runtime.track)
    spec, folder = settled(spec, runtime), RunFolder(path)
    fabric = runtime.fabric(spec.train.precision)
    main = fabric.is_global_zero
    told = reporter if main else None
    if overwrite:
        _refuse_to_lose_weights(folder, spec)
    else:
        spec = _as_begun(folder, spec)
        _refuse_other_weights(folder, spec)
        if main:
            warn_of_changed_plugins(folder)
        if is_finished(folder, spec, until_epoch=runtime.until_epoch):
            if main:
                folder.tidy()
            if told is not None:
                told.finished(folder, before=True)
            return folder
    if told is not None:
        told.preparing(f"reading {spec.data.name}")
    found = build.load_data(spec, root=runtime.data_root, on_decode=None if told is None else told.decoded)
    if told is not None:
        told.preparing(f"building {spec.model.backbone}")
    model = build.build_model(
        spec,
        num_classes=found.train.num_classes,
        channels=found.dataset.channels,
        size=build.network_size(spec, found.train),
    )
    given, spec = spec, build.with_pretrained_normalisation(spec, model, found.dataset)
    check_run(spec, model, found)
    if main:
        _warn_of_untested_classes(found)
        folder = RunFolder.create_or_open(path, spec, overwrite=overwrite)
    with folder, Heartbeat(fabric, seconds=runtime.heartbeat_seconds):
        if main:
            _record(folder, spec, found)
        if told is not None and (spec is not given or spec.train.epochs == 0):
            told.note(_normalisation(spec, found, pretrained=spec is not given))
        fabric.barrier()
        training = _Session(spec=spec, runtime=runtime, fabric=fabric, found=found, folder=folder, told=told)
        trainer = training.trainer(model)
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
        moved |= trainer.close(training.head_for)
        written = training.predictions()
        if main:
            if moved:
                _remove_outdated(folder, keep=written)
            write_summary(folder, spec, model)
            trainer.log.close()
        if told is not None:
            told.finished(folder, before=False)
        fabric.barrier()
    return folder


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Session:
    """A run under way: its images, its folder and where it runs. `told` is None in all processes but the main one."""

    spec: RunSpec
    runtime: Runtime
    fabric: Fabric
    found: build.RunData
    folder: RunFolder
    told: RunReporter | None

    def trainer(self, model: CalibratedModel) -> Trainer:
        spec, found, folder = self.spec, self.found, self.folder
        compiled = spec.train.compile
        assert compiled != "auto", "the spec is settled"
        if spec.train.deterministic:
            torch.use_deterministic_algorithms(True)
        if self.fabric.device.type == "cuda" and spec.train.precision != "32-true":
            torch.set_float32_matmul_precision("high")
        if spec.train.sync_batchnorm and self.fabric.world_size > 1:
            from timm.layers import convert_sync_batchnorm  # torch's own drops the activations in timm's BatchNormAct2d

            model = convert_sync_batchnorm(model)
        augment, place = build.build_augment(spec, found), self.runtime.place(self.fabric)
        batch_size = spec.train.batch_size // spec.optimizer.accumulate
        settings = Settings(
            epochs=spec.train.epochs,
            until_epoch=self.runtime.until_epoch,
            seed=spec.seed,
            accumulate=spec.optimizer.accumulate,
            clip_norm=spec.optimizer.clip_norm,
            ema_decay=spec.optimizer.ema_decay,
            compile=compiled,
            channels_last=spec.train.channels_last,
            save_seconds=self.runtime.save_seconds,
        )
        setup = Setup(
            model=model,
            loss=build.build_loss(spec),
            optimizer=build.optimizer_for(spec, model),
            schedule=build.schedule_for(spec),
            train=TrainLoader(found.train, found.train_rows, augment, seed=spec.seed, batch_size=batch_size, **place),
            validation=EvalLoader(
                found.validation, found.validation_rows, augment, batch_size=spec.evaluation.batch_size, **place
            ),
            checkpoints=CheckpointFolder(folder.checkpoints_path, spec.hash),
            log=RunLog(folder.log_path, loggers=loggers_of(self.runtime.track, folder, spec)),
            scores={"nll_ts": nll_after_scaling} if "best-nll-ts" in spec.evaluation.checkpoints else {},
        )
        return Trainer(self.fabric, setup, settings, reporter=self.told)

    def head_for(self, forward: Callable[[Tensor], ModelOutput]) -> Taught | None:
        """Reads the run's images with its trained network and teaches the head."""
        spec, found = self.spec, self.found
        augment = build.build_augment(spec, found)
        reader = Reader(
            forward=forward,
            fabric=self.fabric,
            seed=spec.seed,
            batch_size=spec.evaluation.batch_size,
            workers=self.runtime.num_workers,
            told=None if self.told is None else self.told.teaching,
        )
        train = LessonImages(found.train, found.train_rows, augment)
        return teach(reader, train, LessonImages(found.validation, found.validation_rows, augment), build.lesson(spec))

    def predictions(self) -> list[Path]:
        """Writes those of the run's own splits under the checkpoints that its spec names."""
        sets, wanted = own_images(self.found), self.spec.evaluation
        total = sum(each.count for each in sets) * len(wanted.checkpoints) // self.fabric.world_size
        predictor = Predictor(
            folder=self.folder,
            spec=self.spec,
            interface=interface_of(self.spec, self.found),
            fabric=self.fabric,
            runtime=self.runtime,
            on_batch=None if self.told is None else functools.partial(self.told.predicted, total=total),
        )
        return predictor.write(sets, wanted.checkpoints, features=wanted.features)


def _fitted(trainer: Trainer, folder: RunFolder) -> bool:
    """Trains to the end; whether the weights are then other ones than those that the folder's predictions may be of."""
    since, before = trainer.state.update, folder.progress()
    trainer.fit()
    update = trainer.state.update
    return update != since or (before is not None and before.updates != update)


def is_finished(folder: RunFolder, spec: RunSpec, *, until_epoch: int | None = None) -> bool:
    """Whether the folder holds this very spec's summary and the predictions it asks for: nothing is left to do."""
    try:
        summary = folder.summary()
    except RunFolderError:  # none, or a damaged one, which is written again
        return False
    wanted_epochs = spec.train.epochs if until_epoch is None else min(spec.train.epochs, until_epoch)
    if summary["spec"] != spec.model_dump(mode="json") or folder.checkpoints(spec).is_behind:
        return False
    if summary["epochs"] < wanted_epochs:
        return False
    wanted = [
        (split, rule)
        for rule in spec.evaluation.checkpoints
        for split in summary["results"].get(rule, ("validation", "test"))
    ]
    paths = [folder.predictions_path(split, rule) for split, rule in wanted if split in OWN_SPLITS]
    return all((path / MANIFEST).is_file() for path in paths)


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
            f"predictions from before the run resumed are removed: {names}; calattn predict makes them again",
            stacklevel=2,
        )


def _warn_of_untested_classes(found: build.RunData) -> None:
    if found.test is None:
        warnings.warn(
            f"{found.dataset.name} has no test images: the run is judged by its validation images; add a test folder (or files)",
            stacklevel=3,
        )
        return
    counts = found.test.labels.bincount(minlength=found.test.num_classes)
    missing = [name for name, count in zip(found.class_names, counts.tolist(), strict=True) if count == 0]
    if missing:
        warnings.warn(
            f"the test images hold none of {len(missing)} of the {len(counts)} classes ({some(missing)}): metrics on "
            "them do not cover these classes; add some, or judge the run on other images (calattn predict --data)",
            stacklevel=3,
        )


def _as_begun(folder: RunFolder, spec: RunSpec) -> RunSpec:
    """A spec that leaves the normalisation to its pretrained weights gets the one that the run in the folder began with.

    So a run that is finished, or another one, is recognised before the weights are fetched.
    """
    if not spec.model.pretrained or spec.data.mean is not None or not folder.spec_path.is_file():
        return spec
    old = folder.spec().data
    return spec.model_copy(update={"data": spec.data.model_copy(update={"mean": old.mean, "std": old.std})})


def _normalisation(spec: RunSpec, found: build.RunData, *, pretrained: bool) -> str:
    mean, std = (", ".join(f"{number:.4g}" for number in each) for each in build.normalisation(spec, found.dataset))
    how = "as for the pretrained weights:" if pretrained else "by"
    return f"images are normalised {how} mean {mean}, deviation {std} (data.mean and data.std set others)"


def _record(folder: RunFolder, spec: RunSpec, found: build.RunData) -> None:
    """What the run starts from; a run that goes on must find the data it began with."""
    if not folder.environment_path.exists():
        begun = {} if spec.model.weights is None else {_BEGUN: digest(Path(spec.model.weights))}
        write_json(describe_environment() | begun, folder.environment_path)
    if folder.splits_path.exists():
        check_same_split(folder, found)
    else:
        held_out = None if found.validation is not found.train else found.validation_rows
        fraction, seed = spec.data.validation, spec.data.split_seed
        save_splits(folder.splits_path, held_out, found.train.labels, fraction=fraction, seed=seed)
    if folder.interface_path.exists():
        check_own_classes(folder, spec, found)
    else:
        write_json(dataclasses.asdict(interface_of(spec, found)), folder.interface_path)


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


def nll_after_scaling(predictions: Predictions) -> float:
    """The lowest NLL that one temperature can give: what refinement is left once calibration is repaired."""
    return nll_optimum(predictions, (1e-6, 1e6)).nll
