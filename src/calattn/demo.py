"""`make demo`: a small ViT on scikit-learn's digits, with and without CalAttn, before and after temperature scaling.

Everything is embedded: no network, no GPU, about half a minute on two cores. The digits are easy, so the point is the
procedure and the intervals, not the size of the effect.
"""

from __future__ import annotations

import argparse
import time

import timm
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

import calattn
from calattn.posthoc import TemperatureScaling

ROWS = ("accuracy", "nll", "brier", "ece", "adaptive_ece", "classwise_ece", "smooth_ece")

BATCH = 32

Split = tuple[Tensor, Tensor]


def digits(seed: int) -> dict[str, Split]:
    """1,797 grey 8×8 digits: 50 % train, 15 % validation, 35 % test, drawn by seed."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    labels = torch.tensor(bunch.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    train, validation = round(0.5 * len(order)), round(0.65 * len(order))
    parts = {"train": order[:train], "validation": order[train:validation], "test": order[validation:]}
    return {name: (images[rows], labels[rows]) for name, rows in parts.items()}


def small_vit(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return timm.create_model(
        "vit_tiny_patch16_224", img_size=8, patch_size=2, in_chans=1, num_classes=10, embed_dim=48, depth=4, num_heads=3
    )


def fit(model: nn.Module, loss: calattn.losses.LossFunction, data: Split, *, epochs: int, seed: int, name: str) -> None:
    """Plain AdamW with a one-cycle schedule."""
    images, labels = data
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    steps = epochs * -(-len(labels) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=steps, pct_start=0.1)
    model.train()
    for _ in track(range(epochs), description=f"training {name}", transient=True):
        for rows in torch.randperm(len(labels), generator=generator).split(BATCH):
            value = loss(model(images[rows]), labels[rows])
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            schedule.step()


@torch.no_grad()
def predict(model: calattn.CalibratedModel, data: Split, split: str) -> calattn.Predictions:
    model.eval()
    out = model.output(data[0])
    return calattn.Predictions(logits=out.logits, scale=out.scale, labels=data[1], features=out.features, split=split)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the model is too small to share; this also makes the run repeatable anywhere
    console = Console()
    start = time.perf_counter()
    data = digits(arguments.seed)
    evaluations: dict[str, calattn.Evaluation] = {}
    tests = {}
    loss = calattn.losses.create("ce_brier", weight=0.1)  # the same for both: the head is the only difference
    for title, head in (
        ("no head", "none"),
        ("CalAttn", "calattn"),
    ):
        model = calattn.attach(small_vit(arguments.seed), head=head)
        fit(model, loss, data["train"], epochs=arguments.epochs, seed=arguments.seed, name=title)
        validation, test = (predict(model, data[split], split) for split in ("validation", "test"))
        scaling = TemperatureScaling(objective="nll").fit(validation)
        tests[title] = scaling(test)
        evaluations[title] = calattn.evaluate(test)
        evaluations[f"{title}\n+ T = {scaling.temperature_:.2f}"] = calattn.evaluate(tests[title])
        if head == "calattn":
            console.print(f"CalAttn's scale on the test images: {describe(test.scale)}")
    console.print(as_table(evaluations))
    (_, baseline), (_, ours) = tests.items()
    difference = calattn.compare(baseline, ours)["nll"]
    verdict = "is more than chance" if difference.significant else "is within chance"
    console.print(
        f"CalAttn against the baseline, both after temperature scaling: NLL {difference.difference:+.4f} "
        f"[{difference.low:+.4f}, {difference.high:+.4f}], which {verdict} on these {len(ours)} images."
    )
    console.print(
        f"{time.perf_counter() - start:.0f} s. Next: the two examples of the README, on your own model or logits."
    )


def as_table(evaluations: dict[str, calattn.Evaluation]) -> Table:
    samples = next(iter(evaluations.values())).num_samples
    table = Table(title=f"{samples} test digits; per cent (NLL in nats) with 95 % bootstrap intervals")
    table.add_column("")
    for title in evaluations:
        table.add_column(title, justify="right")
    for name in ROWS:
        table.add_row(calattn.metrics.METRICS[name].title, *(cell(result[name]) for result in evaluations.values()))
    return table


def cell(row: calattn.MetricRow) -> str:
    factor, places = (1, 3) if row.name == "nll" else (100, 1)
    value, low, high = (f"{factor * (part or 0.0):.{places}f}" for part in (row.value, row.low, row.high))
    return f"{value}\n[dim]{low}–{high}[/dim]"


def describe(scale: Tensor | None) -> str:
    assert scale is not None
    low, middle, high = (float(q) for q in scale.quantile(torch.tensor([0.05, 0.5, 0.95])))
    return f"median {middle:.2f}, 5 % to 95 % of images {low:.2f} to {high:.2f}"


if __name__ == "__main__":
    main()
