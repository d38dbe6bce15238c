"""`calattn teach`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from calattn.cli import completion, options
from calattn.cli.errors import examples
from calattn.cli.train import train_and_report
from calattn.rules import RULES


@options.flat
def teach(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN|BACKBONE", help="A trained run's folder, or a backbone's name with --weights and --data."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The new run's folder; default: RUN-taught.", rich_help_panel=options.RUN),
    ] = None,
    head: Annotated[
        str,
        typer.Option(
            help="taught (temperature and class offsets), taught_classwise, or taught_scale, which changes no prediction.",
            rich_help_panel=options.RUN,
        ),
    ] = "taught",
    checkpoint: Annotated[
        str,
        typer.Option(
            help=f"Of a run: {', '.join(RULES)}.",
            rich_help_panel=options.RUN,
            autocompletion=completion.names("calattn.rules:RULES"),
        ),
    ] = "last",
    weights: Annotated[
        Path | None,
        typer.Option(help="Of a backbone: its state dict (.safetensors, .pt).", rich_help_panel=options.RUN),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Of a backbone: what it was trained on (imagefolder:PATH with train/, val/ and test/, a data set, …).",
            rich_help_panel=options.RUN,
            autocompletion=completion.names("calattn.data:DATASETS"),
        ),
    ] = None,
    size: Annotated[
        int | None, typer.Option(help="Of a backbone: side in pixels of its images.", rich_help_panel=options.RUN)
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change any key of the new run's spec.", rich_help_panel=options.RUN
        ),
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Remove the run that --out holds first.", rich_help_panel=options.RUN),
    ] = False,
    where: options.Cluster = options.CLUSTER,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
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

    foreign = {"--weights": weights, "--data": data, "--size": size}
    changes = overrides or []
    if head not in TAUGHT_HEADS:
        raise ValueError(f"--head must be {', '.join(TAUGHT_HEADS[:-1])} or {TAUGHT_HEADS[-1]}, got {head!r}")
    if (Path(source) / "spec.yaml").is_file():
        if given := [flag for flag, value in foreign.items() if value is not None]:
            raise ValueError(f"{given[0]} is for a backbone's name; the run {source} says it itself")
        values: dict[str, Any] = run_values(Path(source), checkpoint)
        out = out or Path(f"{source.rstrip('/')}-taught")
    else:
        known = any(change.startswith("data.validation=") for change in changes)
        values = backbone_values(source, weights=weights, data=data, size=size, split_is_known=known)
        out = out or Path("runs") / f"{source.replace('/', '-')}-taught"
    values["model"]["head"] = head
    spec = resolve(values, changes)
    train_and_report(spec, where.runtime(), out, overwrite=overwrite, as_json=json, command="teach")


teach.epilog = examples(  # type: ignore[attr-defined]
    "calattn teach runs/a                                      a run that was trained without a head",
    "calattn teach runs/a --head taught_scale --out runs/b     keeps every predicted class",
    "calattn teach vit_small_patch16_224 --weights net.safetensors --data imagefolder:pets --size 224",
)
