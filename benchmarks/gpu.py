"""Evaluation of logits that lie on a GPU, and inference with a head against the bare backbone.

    python -m benchmarks.gpu --json FILE          # a minute and a half on an H200
    python -m benchmarks.gpu --device cpu --small # does every step work?

The first compares with two CPU cores of the same machine, on the same logits, and checks that both give the same values. The
second times DeiT-S at 224 px in bf16, compiled and not, at batch 1 and 512, the two models in turns.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import calattn
from benchmarks.timing import best_of
from calattn import Predictions
from calattn.runs.environment import describe_environment


def logits_and_labels(n: int, c: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(n, c, generator=g), torch.randint(c, (n,), generator=g)
    wanted = torch.where(torch.rand(n, generator=g) < 0.75, labels, torch.randint(c, (n,), generator=g))
    logits[torch.arange(n), wanted] += 7 + 14 * torch.rand(n, generator=g)
    return logits, labels


def evaluation(device: torch.device, n: int, c: int) -> dict[str, Any]:
    """Seconds of all metrics, without and with 1,000 resamples, on two CPU cores and on the device."""
    logits, labels = logits_and_labels(n, c)
    there = logits.to(device), labels.to(device)
    torch.set_num_threads(2)
    found: dict[str, Any] = {"n": n, "c": c}
    for resamples in (0, 1000):

        def on_cpu(resamples: int = resamples) -> Any:
            return calattn.evaluate(Predictions(logits=logits, labels=labels), num_bootstrap=resamples)

        def on_device(resamples: int = resamples) -> Any:
            made = calattn.evaluate(Predictions(logits=there[0], labels=there[1]), num_bootstrap=resamples)
            waited(device)
            return made

        ours, theirs = on_device(), on_cpu()
        seconds = {"cpu": best_of(on_cpu, 3), "device": best_of(on_device, 5)}
        apart = max(abs(ours[name].value - theirs[name].value) for name in ours if ours[name].value is not None)
        found[f"resamples_{resamples}"] = seconds | {
            "ratio": seconds["cpu"] / seconds["device"],
            "values_apart": apart,
        }
    return found


def waited(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def inference(device: torch.device, size: int, batches: tuple[int, ...], rounds: int) -> dict[str, Any]:
    """Milliseconds of a batch, bare and with the head: medians of rounds in turns."""
    import timm

    found: dict[str, Any] = {}
    for compiled, batch in itertools.product((False, True), batches):
        bare = timm.create_model("deit_small_patch16_224", num_classes=1000, img_size=size).eval().to(device)
        with_head = calattn.attach(timm.create_model("deit_small_patch16_224", num_classes=1000, img_size=size))
        with_head = with_head.eval().to(device)
        models: dict[str, nn.Module] = {"bare": bare, "head": with_head}
        if compiled:
            mode = "reduce-overhead" if device.type == "cuda" else "default"
            models = {name: torch.compile(model, mode=mode) for name, model in models.items()}
        images = torch.randn(batch, 3, size, size, device=device)
        times: dict[str, list[float]] = {name: [] for name in models}
        with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16):
            for _ in range(3):
                for model in models.values():
                    timed(model, images, device, 3)
            for _ in range(rounds):
                for name, model in models.items():
                    times[name].append(timed(model, images, device, 10))
        middle = {name: 1000 * statistics.median(each) for name, each in times.items()}
        key = f"batch_{batch}{'_compiled' if compiled else ''}"
        found[key] = middle | {"more": middle["head"] / middle["bare"] - 1}
    return found


def timed(model: Callable[[torch.Tensor], Any], images: torch.Tensor, device: torch.device, repeats: int) -> float:
    """Seconds of one call, from several in a row."""
    waited(device)
    start = time.perf_counter()
    for _ in range(repeats):
        model(images)
    waited(device)
    return (time.perf_counter() - start) / repeats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    device = torch.device(asked.device)
    n, c, size, batches, rounds = (2_000, 50, 32, (1, 4), 2) if asked.small else (50_000, 1_000, 224, (1, 512), 15)
    found = {
        "command": "python -m benchmarks.gpu",
        "evaluation": evaluation(device, n, c),
        "inference": inference(device, size, batches, rounds),
        "environment": describe_environment(),
    }
    text = json.dumps(found, indent=2)
    print(text)
    if asked.json is not None:
        asked.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
