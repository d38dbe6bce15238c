"""Training throughput of the real pipeline, on one GPU.

    python -m benchmarks.training --out results/bench-training.json      # about ten minutes on an H200
    python -m benchmarks.training --out results/bench-training.json --case swin_small_224    # only that; the rest is kept

For each network, images a second of
  pipeline    the engine as `calattn train` runs it, with CalAttn: uint8 images on the device, crop, flip, resize, normalise, step
  synthetic   the same compiled step on one batch of normalised images that lies on the device
  no head     the pipeline without the head
  paper       the authors' way: float32, the backbone twice a step (once for logits, once for features), batch 64, not compiled,
              on a batch that lies on the device
Rounds of the first three alternate, so that a drift of the clocks meets all alike; each number is the median round.
Floating-point operations are counted by torch (forward and backward of the step, as executed) and held against the GPU's dense
bf16 peak. `kernels_ms` says what a step of the pipeline spends on the GPU by kind of kernel, as torch's profiler sees it; `idle`
is the rest of the step.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch.utils.flop_counter import FlopCounterMode

import calattn
from calattn import data
from calattn.data.loading import Batch, TrainLoader
from calattn.engine.checkpoint import CheckpointFolder
from calattn.engine.fit import Settings, Setup, Trainer
from calattn.engine.log import RunLog
from calattn.runs import build
from calattn.runs.environment import describe_environment
from calattn.runs.resolving import resolve
from calattn.runs.spec import RunSpec

CASES = {
    "deit_small_224": ("deit_small", 224, 512),
    "vit_base_224": ("vit_base", 224, 256),
    "swin_small_224": ("swin_small", 224, 256),
    "deit_small_32": ("deit_small", 32, 512),
}
PEAK = {
    "NVIDIA H200": 989e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
}  # dense bf16, the vendor's


def images() -> data.ArrayImages:
    """CIFAR-10's shape and number of training images; what they show does not change the time."""
    generator = torch.Generator().manual_seed(0)
    array = torch.randint(256, (47_500, 3, 32, 32), generator=generator, dtype=torch.uint8)
    names = data.describe("cifar10").class_names
    return data.ArrayImages(
        array=array, labels=torch.randint(10, (len(array),), generator=generator), class_names=names
    )


def spec_of(backbone: str, size: int, batch: int, head: str, mode: str = "default") -> RunSpec:
    changes = [f"model.backbone={backbone}", f"data.size={size}", f"train.batch_size={batch}", f"model.head={head}"]
    return resolve(
        "adamw-cosine", [*changes, "train.precision=bf16-mixed", f"train.compile={mode}", "optimizer.fused=true"]
    )


class Course:
    """A trainer as a run builds it, and an endless supply of its batches."""

    def __init__(self, spec: RunSpec, source: data.ArrayImages, fabric: Fabric) -> None:
        found = build.RunData(
            dataset=data.describe("cifar10"),
            train=source,
            validation=source,
            test=source,
            train_rows=torch.arange(len(source)),
            validation_rows=torch.arange(1000),
        )
        size = build.network_size(spec, source)
        model = build.build_model(spec, num_classes=10, channels=3, size=size)
        folder = Path(tempfile.mkdtemp())
        self.loader = TrainLoader(
            source,
            None,
            build.build_augment(spec, found),
            seed=0,
            batch_size=spec.train.batch_size,
            device=fabric.device,
        )
        setup = Setup(
            model=model,
            loss=build.build_loss(spec),
            optimizer=build.optimizer_for(spec, model),
            schedule=build.schedule_for(spec),
            train=self.loader,
            validation=None,  # type: ignore[arg-type]  (no epoch is finished here)
            checkpoints=CheckpointFolder(folder, spec.hash),
            log=RunLog(folder / "log.jsonl"),
        )
        settings = Settings(epochs=1000, clip_norm=spec.optimizer.clip_norm, compile=spec.train.compile)  # type: ignore[arg-type]
        self.trainer = Trainer(fabric, setup, settings)
        self.trainer.step.train()
        self.model = model
        self.batch_size = spec.train.batch_size
        self.batches: Iterator[Batch] = itertools.chain.from_iterable(self.loader.epoch(e) for e in itertools.count())
        self.fixed = next(self.batches)

    def pipeline(self) -> None:
        self.trainer.update([next(self.batches)])

    def synthetic(self) -> None:
        self.trainer.update([self.fixed])


def rate(step: Callable[[], None], *, images_a_step: int, seconds: float) -> float:
    """Images a second over about so many seconds, timed from one synchronisation to the next."""
    torch.cuda.synchronize()
    started, steps = time.perf_counter(), 0
    while steps < 5 or time.perf_counter() - started < seconds:
        step()
        steps += 1
    torch.cuda.synchronize()
    return steps * images_a_step / (time.perf_counter() - started)


def papers_way(backbone: str, size: int) -> tuple[Callable[[], None], int]:
    """Float32, two passes through the backbone a step, batch 64, eager: as the authors' script trains."""
    from timm.models.swin_transformer import WindowAttention

    torch.set_float32_matmul_precision("highest")
    spec = spec_of(backbone, size, 64, "calattn")
    model = build.build_model(spec, num_classes=10, channels=3, size=size).cuda().train()
    for module in model.modules():
        if isinstance(module, WindowAttention):
            module.fused_attn = False  # timm's default, which the authors use; `calattn` fuses it
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    x, y = torch.randn(64, 3, size, size, device="cuda"), torch.randint(10, (64,), device="cuda")

    def step() -> None:
        logits = model.backbone(x)
        features = model.backbone.forward_head(model.backbone.forward_features(x), pre_logits=True)
        out = model.head(features, logits)
        loss = calattn.losses.ce_brier(out.calibrated_logits, y, weight=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step, 64


def operations(course: Course) -> float:
    """Floating-point operations an image of one training step, forward and backward."""
    model, batch = course.model, course.fixed
    with FlopCounterMode(display=False) as counter, torch.autocast("cuda", dtype=torch.bfloat16):
        calattn.losses.ce_brier(model(batch.images[:8]), batch.targets[:8], weight=0.1).backward()
    model.zero_grad(set_to_none=True)
    return counter.get_total_flops() / 8


def queueing(step: Callable[[], None], steps: int = 5) -> float:
    """Milliseconds that the host takes to queue a step, with nothing to wait for."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(steps):
        step()
    queued = time.perf_counter() - started
    torch.cuda.synchronize()
    return 1e3 * queued / steps


KINDS = {
    "attention": ("fmha", "flash", "attention", "sdpa"),
    "matrix products": ("gemm", "nvjet", "cutlass", "cublas"),
    "optimizer": ("multi_tensor", "adam"),
    "copies": ("memcpy", "memset"),
}
"""What names of kernels hold, the first that fits; all others are elementwise work, normalisation and sums."""


def kernels(step: Callable[[], None], steps: int = 10) -> dict[str, float]:
    """Milliseconds a step that each kind of kernel takes; `idle`: the GPU does nothing."""
    step()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        started = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - started
    spent = dict.fromkeys([*KINDS, "elementwise, norms and sums"], 0.0)
    for event in profile.key_averages():
        name = event.key.lower()
        kind = next((kind for kind, parts in KINDS.items() if any(part in name for part in parts)), list(spent)[-1])
        spent[kind] += event.self_device_time_total / 1e3 / steps
    return spent | {"idle": 1e3 * seconds / steps - sum(spent.values())}


def measured(
    name: str, source: data.ArrayImages, fabric: Fabric, *, rounds: int, seconds: float, mode: str
) -> dict[str, Any]:
    backbone, size, batch = CASES[name]
    torch.set_float32_matmul_precision("high")
    started = time.perf_counter()
    ours, bare = (Course(spec_of(backbone, size, batch, head, mode), source, fabric) for head in ("calattn", "none"))
    steps = {"pipeline": ours.pipeline, "synthetic": ours.synthetic, "no_head": bare.pipeline}
    for step in (*steps.values(), *steps.values()):
        rate(step, images_a_step=batch, seconds=0)
    warm = time.perf_counter() - started
    found: dict[str, list[float]] = {key: [] for key in steps}
    for _ in range(rounds):
        for key, step in steps.items():
            found[key].append(rate(step, images_a_step=batch, seconds=seconds))
    result = {key: statistics.median(values) for key, values in found.items()}
    queue, spent = queueing(ours.pipeline), kernels(ours.pipeline)
    flops = operations(ours)
    step, images_a_step = papers_way(backbone, size)
    rate(step, images_a_step=images_a_step, seconds=0)
    result["paper"] = rate(step, images_a_step=images_a_step, seconds=seconds)
    ratios = {
        "pipeline_over_synthetic": statistics.median(
            a / b for a, b in zip(found["pipeline"], found["synthetic"], strict=True)
        ),
        "pipeline_over_no_head": statistics.median(
            a / b for a, b in zip(found["pipeline"], found["no_head"], strict=True)
        ),
        "pipeline_over_paper": result["pipeline"] / result["paper"],
    }
    peak = PEAK.get(torch.cuda.get_device_name())
    use = {} if peak is None else {"model_flop_utilisation": result["pipeline"] * flops / peak}
    return {
        "batch": batch,
        "flops_an_image": flops,
        **result,
        **ratios,
        **use,
        "queueing_ms": queue,
        "kernels_ms": spent,
        "compile_seconds": warm,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, action="append", help="only these networks")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a round")
    parser.add_argument("--compile", default="default", choices=("default", "reduce-overhead", "max-autotune"))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA GPU")
    fabric = Fabric(accelerator="cuda", devices=1, precision="bf16-mixed")
    fabric.launch()
    source = images()
    document = {"command": "python -m benchmarks.training", "cases": {}}
    if arguments.out is not None and arguments.out.exists():
        document = json.loads(arguments.out.read_text())  # cases that are not measured now stay as they were
    for name in arguments.case or CASES:
        result = measured(
            name, source, fabric, rounds=arguments.rounds, seconds=arguments.seconds, mode=arguments.compile
        )
        document["cases"][name] = {**result, "environment": describe_environment()}
        print(name, json.dumps(result), flush=True)
        if arguments.out is not None:  # after each: a run that is cut short keeps what it measured
            arguments.out.write_text(json.dumps(document, indent=1) + "\n")
        torch._dynamo.reset()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
