"""The taught head against its rivals, on the same logits: clean and corrupted test images, SVHN, mixed streams.

    calattn train cifar10 --seed 0 --set model.head=none --out runs/c10-0          # the network; --seed 1, 2; cifar100
    python -m benchmarks.head measure runs/c10-0 --out c10-0.safetensors           # a minute on an H200
    python -m benchmarks.head summarise c10-0.safetensors --out results/head/cifar10-deit-0.json     # a minute on one core
    python -m benchmarks.head table results/head/*.json --out results/head.md      # means over seeds

`measure` fits every method on the run's validation images and writes, for each method and each set of images, what they gave for
each image: NLL, Brier score, confidence, whether the prediction was right, entropy and log s. Nothing is chosen on test images.
A network that was trained together with its head (`--set model.head=calattn --set loss.name=ce_brier`) is a rival with logits of
its own: measured as it is and after TS. `--weights FILE` takes the network from a state dict where the run folder has no
checkpoint any more. `summarise` makes numbers of that, and paired differences from temperature scaling on the same logits with
95 % intervals (images resampled, the same ones for every set).
`--human FILE` adds CIFAR-10H: an .npz with `counts` of human labels for the 10,000 test images.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from calattn import data
from calattn.data.augment.pipeline import Augment
from calattn.data.corruptions import CORRUPTIONS, corrupt
from calattn.data.loading import EvalLoader
from calattn.engine.closing import Reader, Source
from calattn.files.atomic import atomic_write
from calattn.heads.lesson import Lesson, Reading, teach_head
from calattn.models.attach import CalibratedModel
from calattn.posthoc import SATS, FrozenCalAttn, VectorScaling
from calattn.runs import build
from calattn.runs.environment import describe_environment
from calattn.runs.folder import RunFolder
from calattn.runs.interface import interface_of
from calattn.runs.load import trained_network
from calattn.runs.runtime import Runtime
from calattn.runs.weights import digest, load_weights
from calattn.seeds import seed_of
from calattn.types import Predictions

COLUMNS = ("nll", "brier", "confidence", "correct", "entropy", "log_scale")
NEIGHBOURS = {"cifar10": 50, "cifar100": 200}  # as in DAC's own settings, of all training images
KNOWN = 12_000  # training images that DAC measures distances to, and with them a share of the neighbours

Judged = tuple[Tensor, Tensor | None]  # calibrated logits, and log s where there is a temperature per image
Method = Callable[["Seen"], Judged]


@dataclasses.dataclass(frozen=True, eq=False)
class Seen:
    """What the network gave for a set of images, in their order; `layers` are the CLS tokens of some blocks."""

    features: Tensor
    logits: Tensor
    labels: Tensor
    layers: tuple[Tensor, ...] = ()

    def predictions(self) -> Predictions:
        return Predictions(
            logits=self.logits.float().cpu(), labels=self.labels.cpu(), features=self.features.float().cpu()
        )

    def reading(self) -> Reading:
        return Reading(self.features, self.logits, self.labels)


class Network:
    """A frozen network that is read: features, logits and what its blocks give for the class token."""

    def __init__(self, model: CalibratedModel, augment: Augment, fabric: Any, batch_size: int) -> None:
        self.model, self.augment, self.fabric, self.batch_size = (
            model.to(fabric.device).eval(),
            augment,
            fabric,
            batch_size,
        )
        self._tokens: list[Tensor] = []
        self._seeing = False  # what others read with this network is not kept
        blocks = getattr(model.backbone, "blocks", None)
        if blocks is not None and getattr(model.backbone, "cls_token", None) is not None:
            for block in list(blocks)[1::2]:
                block.register_forward_hook(lambda _, __, out: self._keep(out))

    def _keep(self, out: Tensor) -> None:
        if self._seeing:
            self._tokens.append(out[:, 0].float())

    @torch.no_grad()
    def see(self, images: data.Images, rows: Tensor | None = None) -> Seen:
        loader = EvalLoader(images, rows, self.augment, batch_size=self.batch_size, device=self.fabric.device)
        parts = []
        for batch in loader:
            self._tokens.clear()
            self._seeing = True
            with self.fabric.autocast():
                out = self.model.output(batch.images)
            self._seeing = False
            kept = (out.features.float(), out.logits.float(), batch.labels, *self._tokens)
            parts.append([part[: batch.count].clone() for part in kept])
        features, logits, labels, *layers = (torch.cat(column) for column in zip(*parts, strict=True))
        return Seen(features, logits, labels, tuple(layers))


# --- methods


def temperature(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> float:
    """The NLL-optimal single temperature, in log T by golden section: one number needs no more."""
    low, high = -3.0, 3.0
    ratio = (5**0.5 - 1) / 2

    def loss(log_t: float) -> float:
        values = functional.cross_entropy(logits.double() / np.exp(log_t), labels, reduction="none")
        return float(values.mean() if weights is None else (values * weights).sum() / weights.sum())

    for _ in range(40):
        a, b = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, b) if loss(a) < loss(b) else (a, high)
    return float(np.exp((low + high) / 2))


def scaled(by: float) -> Method:
    return lambda seen: (seen.logits / by, torch.full_like(seen.logits[:, 0], float(np.log(by))))


def by_calibrator(calibrator: Any) -> Method:
    def apply(seen: Seen) -> Judged:
        out = calibrator(seen.predictions())
        log_scale = None if out.scale is None else out.scale.log().to(seen.logits)
        return out.calibrated_logits.to(seen.logits), log_scale

    return apply


def by_head(head: Any) -> Method:
    @torch.no_grad()
    def apply(seen: Seen) -> Judged:
        out = head(seen.features, seen.logits)
        return out.calibrated_logits, out.scale.log()

    return apply


def structured(validation: Seen) -> Method:
    """Structured vector scaling (Berta et al. 2025): the best single temperature, then ℓ · (1 + v) + b with a ridge penalty of
    strength classes / images on v and b; on log-probabilities, by NLL."""
    best = temperature(validation.logits, validation.labels)

    def scaled_logs(seen: Seen) -> Tensor:
        return (seen.logits.double() / best).log_softmax(dim=1)

    logs = scaled_logs(validation)
    numbers = torch.zeros(2, logs.shape[1], dtype=torch.float64, device=logs.device, requires_grad=True)
    optimizer = torch.optim.LBFGS([numbers], max_iter=500, line_search_fn="strong_wolfe", tolerance_grad=1e-8)

    def objective() -> Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(logs * (1 + numbers[0]) + numbers[1], validation.labels)
        loss = loss + logs.shape[1] / len(logs) * numbers.square().sum()
        loss.backward()
        return loss

    optimizer.step(objective)
    found = numbers.detach()
    return lambda seen: (scaled_logs(seen) * (1 + found[0]) + found[1], None)


def density_aware(train: Seen, validation: Seen, neighbours: int) -> Method:
    """DAC (Tomani et al., ICML 2023): T = Σ_l w_l · d_l + w_0 with w_l ≥ 0, d_l the squared distance to the k-th nearest training
    image in the normalised features of layer l; blocks, features and logits are the layers. Fitted by NLL, from small w_l and the
    best single temperature, as all others are; the authors fit the squared error and put another method behind it."""
    levels = [functional.normalize(layer, dim=1) for layer in (*train.layers, train.features, train.logits)]

    def distances(seen: Seen) -> Tensor:
        found = []
        for known, layer in zip(levels, (*seen.layers, seen.features, seen.logits), strict=True):
            asked = functional.normalize(layer, dim=1)
            nearest = [
                (2 - 2 * part @ known.T).topk(neighbours, dim=1, largest=False).values[:, -1]
                for part in asked.split(2048)
            ]
            found.append(torch.cat(nearest))
        return torch.stack(found, dim=1).double()

    near, start = distances(validation), temperature(validation.logits, validation.labels)
    spread = near.std(dim=0).clamp_min(1e-6)
    numbers = torch.full((near.shape[1] + 1,), -4.0, dtype=torch.float64, device=near.device)
    numbers[-1] = start
    numbers.requires_grad_()
    optimizer = torch.optim.LBFGS([numbers], max_iter=200, line_search_fn="strong_wolfe")

    def temperatures(values: Tensor) -> Tensor:
        return (values / spread @ numbers[:-1].exp() + numbers[-1]).clamp_min(0.05)

    def objective() -> Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(validation.logits.double() / temperatures(near).unsqueeze(1), validation.labels)
        loss.backward()
        return loss

    optimizer.step(objective)

    @torch.no_grad()
    def apply(seen: Seen) -> Judged:
        by = temperatures(distances(seen)).to(seen.logits)
        return seen.logits / by.unsqueeze(1), by.log()

    return apply


# --- measuring


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
    train = Source(found.train, found.train_rows, augment)
    held_out = Source(found.validation, found.validation_rows, augment)
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
    for name, calibrator in (("vector", VectorScaling()), ("sats", SATS()), ("frozen_calattn", FrozenCalAttn())):
        if name not in without:
            methods[name] = by_calibrator(calibrator.fit(known))
    if "structured" not in without:
        methods["structured"] = structured(validation)
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
    assert isinstance(found.test, data.ArrayImages)
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

    add("test", found.test)
    raw["test/labels"] = found.test.labels
    for name, images in corrupted(found.test, spec.data.name, arguments.severities, arguments.cache):
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


# --- summarising

UNLIKE = tuple(kind for kind in CORRUPTIONS if kind not in ("brightness", "contrast"))  # RandAugment has these two
RESAMPLES = 1000
BINS = 15


class Records:
    """The file of `measure`: [n, 6] by method and set."""

    def __init__(self, path: Path) -> None:
        self.of = {name: tensor.double() for name, tensor in load_file(path).items()}
        with safe_open(path, framework="pt") as file:
            self.about = json.loads(file.metadata()["about"])
        self.methods = list(dict.fromkeys(name.split("/")[0] for name in self.of))
        self.severities = sorted({int(name.rsplit("-", 1)[1]) for name in self.of if "-" in name})

    def groups(self) -> dict[str, list[str]]:
        """Sets whose means are reported."""
        found = {"clean": ["test"]}
        for severity in self.severities:
            found[f"severity {severity}"] = [f"{kind}-{severity}" for kind in CORRUPTIONS]
            found[f"severity {severity}, unlike"] = [f"{kind}-{severity}" for kind in UNLIKE]
        return found


def replicates(rows: Tensor, weights: Tensor) -> Tensor:
    """[4, r + 1]: NLL, Brier, ECE and accuracy of the rows under each resample's weights, the first being all ones."""
    count = weights.sum(dim=1)
    means = (weights @ rows[:, [0, 1, 3]]).T / count
    place = (rows[:, 2] * BINS).ceil().clamp(1, BINS).long() - 1
    gaps = torch.zeros(len(rows), BINS, dtype=torch.float64).scatter_(
        1, place.unsqueeze(1), (rows[:, 3] - rows[:, 2]).unsqueeze(1)
    )
    ece = (weights @ gaps).abs().sum(dim=1) / count
    return torch.stack([means[0], means[1], ece, means[2]])


def interval(values: Tensor) -> list[float]:
    """The value and its 95 % interval, from [value, replicates…]: percentiles, moved so that the replicates' mean is the value.

    Resampling raises a small ECE: plain percentiles may not even hold the value.
    """
    moved = values[1:] - values[1:].mean() + values[0]
    low, high = moved.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return [round(v, 6) for v in (float(values[0]), low, high)]


def selective(rows: Tensor, coverage: float = 0.8) -> dict[str, float]:
    """AURC, and accuracy on the most confident share."""
    right = rows[rows[:, 2].argsort(descending=True, stable=True), 3]
    risk = (1 - right).cumsum(0) / torch.arange(1, len(right) + 1)
    return {"aurc": float(risk.mean()), "accuracy_at_80": float(right[: round(coverage * len(right))].mean())}


def rank(values: Tensor) -> np.ndarray:
    from scipy.stats import rankdata

    return rankdata(values.numpy())


def correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's."""
    return float(np.corrcoef(rank(a), rank(b))[0, 1])


def auroc(low: Tensor, high: Tensor) -> float:
    """P(a value of `high` is larger than one of `low`), ties counting half."""
    ranks = rank(torch.cat([low, high]))[len(low) :]
    return float((ranks.sum() - len(high) * (len(high) + 1) / 2) / (len(low) * len(high)))


def summarise(arguments: argparse.Namespace) -> None:
    records = Records(arguments.records)
    if arguments.human is not None and records.about["spec"]["data"]["name"] != "cifar10":
        raise SystemExit("--human is for networks of cifar10: CIFAR-10H has labels for its test images alone")
    generator = torch.Generator().manual_seed(0)
    n = len(records.of[f"{records.methods[0]}/test"])
    drawn = torch.randint(n, (RESAMPLES, n), generator=generator)
    weights = torch.cat([torch.ones(1, n), torch.zeros(RESAMPLES, n).scatter_add_(1, drawn, torch.ones(RESAMPLES, n))])
    weights = weights.double()
    groups = records.groups()
    wanted = sorted({name for names in groups.values() for name in names})
    made: dict[str, dict[str, Tensor]] = {}
    for method in records.methods:
        made[method] = {name: replicates(records.of[f"{method}/{name}"], weights) for name in wanted}
    metrics = ("nll", "brier", "ece", "accuracy")
    values: dict[str, Any] = {}
    for method in records.methods:
        values[method] = {}
        for group, names in groups.items():
            mine = torch.stack([made[method][name] for name in names]).mean(dim=0)
            found = {metric: {"value": interval(mine[row])[0]} for row, metric in enumerate(metrics)}
            if "ts" in made:
                theirs = torch.stack([made["ts"][name] for name in names]).mean(dim=0)
                for row, metric in enumerate(metrics):
                    found[metric]["against_ts"] = interval(mine[row] - theirs[row])
                    found[metric]["relative"] = interval(mine[row] / theirs[row] - 1)
            values[method][group] = found
    corruptions = torch.randint(len(CORRUPTIONS), (n,), generator=generator)
    is_clean = torch.rand(n, generator=generator) < 0.5
    for method in records.methods:
        clean = records.of[f"{method}/test"]
        worst = torch.stack([records.of[f"{method}/{kind}-{records.severities[-1]}"] for kind in CORRUPTIONS])
        mixed = torch.where(is_clean.unsqueeze(1), clean, worst[corruptions, torch.arange(n)])
        values[method]["mixed stream"] = selective(mixed) | {"ece": float(replicates(mixed, weights[:1])[2, 0])}
        if f"{method}/svhn" in records.of:
            values[method]["svhn"] = {"auroc": auroc(clean[:, 4], records.of[f"{method}/svhn"][:, 4])}
        if arguments.human is not None:
            counts = torch.from_numpy(np.load(arguments.human)["counts"]).double()
            shares = counts / counts.sum(dim=1, keepdim=True)
            entropy = -torch.xlogy(shares, shares).sum(dim=1)
            values[method]["human"] = {
                name: correlation(clean[:, column], entropy)
                for name, column in (("entropy", 4), ("log_scale", 5))
                if clean[:, column].std() > 0  # one temperature for all has no rank
            }
    for method in records.methods:
        values[method]["by corruption"] = {
            name: {metric: round(float(made[method][name][row, 0]), 6) for row, metric in enumerate(metrics)}
            for name in wanted
        }
    document = {"about": records.about, "resamples": RESAMPLES, "values": values}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(arguments.out) as partial:
        partial.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


# --- tables

TITLES = {
    "none": "as trained",
    "ts": "temperature scaling (TS) by NLL",
    "ts_shifted": "TS on clean and shifted validation images",
    "vector": "vector scaling",
    "structured": "structured vector scaling",
    "sats": "SATS",
    "frozen_calattn": "CalAttn head on validation features",
    "dac": "density-aware calibration",
    "joint": "CalAttn trained jointly (another network)",
    "joint_ts": "CalAttn trained jointly, then TS",
    "taught_scale": "**taught, scale only**",
    "taught_classwise": "**taught, classwise**",
    "taught": "**taught**",
}


def table(arguments: argparse.Namespace) -> None:
    """Means over the networks of each data set, backbone and recipe."""
    found: dict[str, list[Any]] = {}
    for path in sorted(arguments.results):
        document = json.loads(path.read_text(encoding="utf-8"))
        spec = document["about"]["spec"]
        mixed = "" if spec["augment"]["mixup"] else ", without mixup"
        found.setdefault(f"{spec['data']['name']}, {spec['model']['backbone']}{mixed}", []).append(document)
    text = "\n\n".join(section(title, documents) for title, documents in found.items())
    with atomic_write(arguments.out) as partial:
        partial.write_text(f"<!-- made by python -m benchmarks.head table -->\n\n{text}\n", encoding="utf-8")


def section(title: str, documents: list[Any]) -> str:
    one = next(iter(documents[0]["values"].values()))
    groups = [name for name in one if name.startswith(("clean", "severity"))]
    seeds = ", ".join(map(str, sorted({document["about"]["spec"]["seed"] for document in documents})))
    lines = [f"## {title} (seeds {seeds})", "", "NLL / Brier / ECE % / accuracy %", ""]
    lines += [
        "| | " + " | ".join(groups) + " | mixed: AURC, accuracy at 80 % | AUROC, SVHN |",
        "|---" * (len(groups) + 3) + "|",
    ]
    for method, name in TITLES.items():
        rows = [document["values"][method] for document in documents if method in document["values"]]
        if not rows:
            continue
        cells = []
        for group in groups:
            nll, brier, ece, accuracy = (
                np.mean([row[group][metric]["value"] for row in rows]) for metric in ("nll", "brier", "ece", "accuracy")
            )
            cells.append(f"{nll:.4f} / {brier:.4f} / {100 * ece:.2f} / {100 * accuracy:.2f}")
        aurc, at = (np.mean([row["mixed stream"][key] for row in rows]) for key in ("aurc", "accuracy_at_80"))
        cells.append(f"{100 * aurc:.2f}, {100 * at:.2f}")
        cells.append(
            f"{100 * np.mean([row['svhn']['auroc'] for row in rows]):.2f}"
            if all("svhn" in row for row in rows)
            else "–"
        )
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *differences(documents, groups), *humans(documents)])


def differences(documents: list[Any], groups: list[str]) -> list[str]:
    """Relative to TS: the mean over seeds, and the hull of the seeds' 95 % intervals, which is wider than the mean's own."""
    metrics = [(group, metric) for group in groups for metric in ("nll", "brier", "ece")]
    lines = [
        "Difference from TS in %, mean over seeds [lowest and highest end of the seeds' paired 95 % intervals]",
        "",
        "| | "
        + " | ".join(f"{group}: {metric.upper() if metric != 'brier' else 'Brier'}" for group, metric in metrics)
        + " |",
        "|---" * (len(metrics) + 1) + "|",
    ]
    for method, name in TITLES.items():
        rows = [document["values"][method] for document in documents if method in document["values"]]
        if method == "ts" or not rows or "relative" not in rows[0]["clean"]["nll"]:
            continue
        cells = []
        for group, metric in metrics:
            value, low, high = (100 * np.array([row[group][metric]["relative"] for row in rows])).T
            cells.append(f"{value.mean():+.1f} [{low.min():.1f}, {high.max():.1f}]")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def humans(documents: list[Any]) -> list[str]:
    """Rank correlation with the entropy of human labels."""
    lines = [
        "",
        "Rank correlation with the entropy of human labels (CIFAR-10H), mean over seeds",
        "",
        "| | entropy | s |",
        "|---|---|---|",
    ]
    count = len(lines)
    for method, name in TITLES.items():
        rows = [document["values"][method].get("human", {}) for document in documents if method in document["values"]]
        cells = [
            f"{np.mean([row[key] for row in rows]):.3f}" if rows and all(key in row for row in rows) else "–"
            for key in ("entropy", "log_scale")
        ]
        if cells[0] != "–":
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines if len(lines) > count else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("run", type=Path)
    measuring.add_argument("--out", type=Path, required=True)
    measuring.add_argument("--weights", type=Path)
    measuring.add_argument("--severities", type=lambda text: tuple(map(int, text.split(","))), default=(5,))
    measuring.add_argument(
        "--without", type=lambda text: tuple(text.split(",")), default=(), help="rivals to leave out"
    )
    measuring.add_argument("--data-root", type=Path)
    measuring.add_argument("--cache", type=Path, default=Path("runs/corrupted"), help="corrupted images are kept here")
    measuring.set_defaults(call=measure)
    summarising = commands.add_parser("summarise")
    summarising.add_argument("records", type=Path)
    summarising.add_argument("--out", type=Path, required=True)
    summarising.add_argument("--human", type=Path)
    summarising.set_defaults(call=summarise)
    tables = commands.add_parser("table")
    tables.add_argument("results", type=Path, nargs="+")
    tables.add_argument("--out", type=Path, required=True)
    tables.set_defaults(call=table)
    arguments = parser.parse_args()
    arguments.call(arguments)


if __name__ == "__main__":
    main()
