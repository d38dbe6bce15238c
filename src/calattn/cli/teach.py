"""`calattn teach`."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Any

import typer

from calattn.cli import options
from calattn.cli.errors import examples
from calattn.cli.train import train_and_report
from calattn.rules import RULES

_run = functools.partial(options.flag, options.RUN)


@options.flat
def teach(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN|BACKBONE", help="A trained run's folder, or a backbone's name with --weights and --data."
        ),
    ],
    new: options.NewRun = options.NEW_RUN,
    head: str = _run(
        "--head",
        default="taught",
        text="taught (temperature and class offsets), taught_classwise, or taught_scale, which changes no prediction.",
    ),
    checkpoint: str = _run(
        "--checkpoint", default="last", text=f"Of a run: {', '.join(RULES)}.", complete=options.RULE_NAMES
    ),
    weights: Path | None = _run("--weights", text="Of a backbone: its state dict (.safetensors, .pt)."),
    data: str | None = _run(
        "--data",
        text="Of a backbone: what it was trained on (imagefolder:PATH with train/, val/ and test/, a data set, …).",
        complete=options.DATASETS,
    ),
    where: options.Cluster = options.CLUSTER,
    json: options.Json = False,
) -> None:
    """Give a trained network a head that calibrates it, image by image.

    The network stays as it is. The head learns from distorted training
    images, and is anchored on validation images: a run's own, or those in
    the val folder. They must not be images that the network was trained on.
    Images of a backbone are normalised as data.mean and data.std say (--set),
    else by ImageNet's numbers or the data set's: use those of its training.
    The result is a run folder like any other.
    """
    from calattn.runs.resolving import backbone_values, resolve, run_values
    from calattn.runs.spec import TAUGHT_HEADS

    out, changes = new.out, new.changes
    if head not in TAUGHT_HEADS:
        raise ValueError(f"--head must be {', '.join(TAUGHT_HEADS[:-1])} or {TAUGHT_HEADS[-1]}, got {head!r}")
    if (Path(source) / "spec.yaml").is_file():
        options.unused(
            f"is for a backbone's name; the run {source} has its own", weights=weights, data=data, size=new.size
        )
        values: dict[str, Any] = run_values(Path(source), checkpoint)
        out = out or Path(f"{source.rstrip('/')}-taught")
    else:
        options.unused("is of a run folder", checkpoint=None if checkpoint == "last" else checkpoint)
        known = any(change.startswith("data.validation=") for change in changes)
        values = backbone_values(source, weights=weights, data=data, size=new.size, split_is_known=known)
        out = out or Path("runs") / f"{source.replace('/', '-')}-taught"
    values["model"]["head"] = head
    spec = resolve(values, changes)
    train_and_report(spec, where.runtime(), out, overwrite=new.overwrite, as_json=json, command="teach")


teach.epilog = examples(  # type: ignore[attr-defined]
    "calattn teach runs/a                                      a run that was trained without a head",
    "calattn teach runs/a --head taught_scale --out runs/b     keeps every predicted class",
    "calattn teach vit_small_patch16_224 --weights net.safetensors --data imagefolder:pets --size 224",
)
