"""`measure`: every method on every set of images, six numbers an image."""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.head.methods import by_calibrator, by_head, density_aware, scaled, temperature
from benchmarks.head.seen import Judged, Method, Network, Seen
from calattn import data
from calattn.data.corruptions import CORRUPTIONS, corrupt
from calattn.engine.closing import LessonImages, Reader
from calattn.heads.lesson import Lesson, teach_head
from calattn.posthoc import SATS, FrozenCalAttn, VectorScaling
from calattn.runs import build
from calattn.runs.environment import describe_environment
from calattn.runs.folder import RunFolder
from calattn.runs.interface import interface_of
from calattn.runs.load import trained_network
from calattn.runs.runtime import Runtime
from calattn.runs.weights import digest, load_weights
from calattn.seeds import seed_of

COLUMNS = ("nll", "brier", "confidence", "correct", "entropy", "log_scale")
NEIGHBOURS = {"cifar10": 50, "cifar100": 200}  # as in DAC's own settings, of all training images
KNOWN = 12_000  # training images that DAC measures distances to, and with them a share of the neighbours


def record(judged: Judged, labels: Tensor) -> Tensor:
    """[n, 6]: the columns of `COLUMNS`, from float64."""
    logits, log_scale = judged
    log_probs = logits.double().log_softmax(dim=1)
    probs = log_probs.exp()
    picked = labels.unsqueeze(1)
    confidence, predicted = probs.max(dim=1)
    columns = (
        -log_probs.gather(1, picked).squeeze(1),
        probs.square().sum(dim=1) - 2 * probs.gather(1, picked).squeeze(1) + 1,
        confidence,
        (predicted == labels).double(),
        -(probs * log_probs).sum(dim=1),
        torch.zeros_like(confidence) if log_scale is None else log_scale.double(),
    )
    return torch.stack(columns, dim=1).float().cpu()


def corrupted(test: data.ArrayImages, name: str, severities: tuple[int, ...], cache: Path) -> Iterator[tuple[str, Any]]:
    """(name of the set, images), made by all cores and kept in `cache` for the next network."""
    wanted = [(kind, severity) for severity in severities for kind in CORRUPTIONS]
    content = hashlib.sha256(test.array.numpy().tobytes()).hexdigest()[:8]
    paths = {each: cache / f"{name}-{content}-{each[0]}-{each[1]}.npy" for each in wanted}
    missing = [each for each, path in paths.items() if not path.exists()]
    cache.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
        jobs = [pool.submit(_corrupt, test.array.numpy(), *each, paths[each]) for each in missing]
        for job in jobs:
            job.result()
    for (kind, severity), path in paths.items():
        array = torch.from_numpy(np.load(path))
        yield f"{kind}-{severity}", dataclasses.replace(test, array=array)


def _corrupt(array: np.ndarray, kind: str, severity: int, path: Path) -> None:
    torch.set_num_threads(1)
    made = corrupt(torch.from_numpy(array), kind, severity, generator=torch.Generator().manual_seed(0))
    partial = path.with_suffix(f".{os.getpid()}.npy")
    np.save(partial, made.numpy())
    partial.replace(path)


def methods_of(
    network: Network, spec: Any, found: build.RunData, validation: Seen, without: tuple[str, ...]
) -> tuple[dict[str, Method], Any]:
    """Every method, fitted; and what the taught heads took in seconds."""
    started = time.perf_counter()
    augment = build.build_augment(spec, found)
    reader = Reader(
        forward=network.model.output, fabric=network.fabric, seed=spec.seed, batch_size=spec.evaluation.batch_size
    )
    train = LessonImages(found.train, found.train_rows, augment)
    held_out = LessonImages(found.validation, found.validation_rows, augment)
    lesson = Lesson()
    distorted = reader.read("distorted", train, train.distorted(), lesson.readings)
    clean = reader.read("held-out", held_out, held_out.untouched(), None)
    shifted = reader.read("shifted", held_out, held_out.shifted(), lesson.shifted)
    seconds = {"reading": time.perf_counter() - started}
    methods: dict[str, Method] = {"none": scaled(1.0)}
    methods["ts"] = scaled(temperature(validation.logits, validation.labels))
    both = torch.cat([clean.logits, shifted.logits]), torch.cat([clean.targets, shifted.targets])
    weights = torch.cat([torch.full_like(r.logits[:, 0], 1 / len(r)) for r in (clean, shifted)]).double()
    methods["ts_shifted"] = scaled(temperature(*both, weights))
    known = validation.predictions()
    for name, calibrator in (("vector", VectorScaling(0.0)), ("sats", SATS()), ("frozen_calattn", FrozenCalAttn())):
        if name not in without:
            methods[name] = by_calibrator(calibrator.fit(known))
    if "structured" not in without:
        methods["structured"] = by_calibrator(VectorScaling(1.0).fit(validation.predictions()))
    if "dac" not in without:
        some = found.train_rows[:: -(-len(found.train_rows) // KNOWN)]
        nearest = max(1, round(NEIGHBOURS.get(spec.data.name, 50) * len(some) / len(found.train_rows)))
        methods["dac"] = density_aware(network.see(found.train, some), validation, nearest)
    for kind, name in (("lowrank", "taught"), ("classwise", "taught_classwise"), ("scale", "taught_scale")):
        started = time.perf_counter()
        taught = dataclasses.replace(lesson, kind=kind)
        head = teach_head(distorted, clean, shifted, taught, seed=seed_of(spec.seed, "teach"))
        seconds[name] = time.perf_counter() - started
        methods[name] = by_head(head.to(clean.logits.device))
    return methods, seconds


def network_of(
    arguments: argparse.Namespace, folder: RunFolder, spec: Any, found: build.RunData, fabric: Any
) -> Network:
    """A run's last network, or the one whose weights are given."""
    interface = interface_of(spec, found)
    if arguments.weights is None:
        model = trained_network(folder, spec, "last", interface)
    else:
        model = build.build_model(
            spec, num_classes=interface.num_classes, channels=interface.channels, size=interface.size
        )
        load_weights(model, arguments.weights, backbone=spec.model.backbone)
    augment = interface.augment(found.test.size)
    return Network(model, augment, fabric, spec.evaluation.batch_size)


def joint_methods(network: Network, validation: Seen) -> dict[str, Method]:
    """A network with a head of its own, as it is and after one temperature on top."""
    joint = by_head(network.model.head)
    by = temperature(joint(validation)[0], validation.labels)

    def then_scaled(seen: Seen) -> Judged:
        logits, log_scale = joint(seen)
        return logits / by, None if log_scale is None else log_scale + float(np.log(by))

    return {"joint": joint, "joint_ts": then_scaled}


def measure(arguments: argparse.Namespace) -> None:
    runtime = Runtime(data_root=arguments.data_root)
    folder = RunFolder.open(arguments.run)
    spec = folder.spec()
    found = build.load_data(spec, root=arguments.data_root)
    fabric = runtime.fabric(runtime.usable_precision(spec.train.precision))
    network = network_of(arguments, folder, spec, found, fabric)
    class_names = found.train.class_names
    validation = network.see(found.validation, found.validation_rows)
    if spec.model.head == "none":
        methods, seconds = methods_of(network, spec, found, validation, arguments.without)
    else:
        methods, seconds = joint_methods(network, validation), {}
    assert found.test is not None
    test = data.in_memory(found.test)
    tensors: dict[str, Tensor] = {}
    raw: dict[str, Tensor] = {"validation/labels": validation.labels.cpu()}

    def keep(name: str, seen: Seen) -> None:
        raw[name] = seen.logits.half().cpu()
        if "taught" in methods:
            raw[f"taught/{name}"] = methods["taught"](seen)[0].half().cpu()

    keep("validation", validation)

    def add(name: str, images: data.Images) -> None:
        seen = network.see(images)
        keep(name, seen)
        for method, apply in methods.items():
            tensors[f"{method}/{name}"] = record(apply(seen), seen.labels)

    add("test", test)
    raw["test/labels"] = test.labels
    for name, images in corrupted(test, spec.data.name, arguments.severities, arguments.cache):
        add(name, images)
    try:
        svhn = data.in_memory(data.load("svhn", "test", root=arguments.data_root))
        add("svhn", dataclasses.replace(svhn, labels=svhn.labels * 0, class_names=class_names))
    except data.DataError as error:
        print(f"no SVHN: {error}")
    about = {
        "columns": COLUMNS,
        "spec": spec.model_dump(mode="json"),
        "spec_hash": spec.hash,
        "trained": json.loads(folder.environment_path.read_text(encoding="utf-8")),
        "training_seconds": json.loads(folder.summary_path.read_text(encoding="utf-8"))["training_seconds"],
        "measured": describe_environment(),
        "weights_sha256": None if arguments.weights is None else digest(arguments.weights),
        "lesson": dataclasses.asdict(Lesson()),
        "seconds": {name: round(value, 2) for name, value in seconds.items()},
    }
    save_file({k: v.contiguous() for k, v in tensors.items()}, arguments.out, {"about": json.dumps(about)})
    save_file({k: v.contiguous() for k, v in raw.items()}, arguments.out.with_suffix(".logits.safetensors"))
    print(json.dumps(about["seconds"]))
    for name in ("test", f"gaussian_noise-{arguments.severities[-1]}"):
        row = {
            key.split("/")[0]: [round(float(v), 4) for v in value.mean(0)[[0, 2, 3]]]
            for key, value in tensors.items()
            if key.endswith(f"/{name}")
        }
        print(name, json.dumps(row))
