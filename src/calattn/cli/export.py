"""`calattn export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from calattn.cli import options
from calattn.cli.console import note, print_json, say
from calattn.cli.errors import examples
from calattn.rules import RULES


@options.flat
def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, a saved model's, or its name on the hub.")],
    form: Literal["onnx", "torch-export"] = options.flag(
        options.OUTPUT, "--format", default="onnx", text="The kind of file."
    ),
    out: Path | None = options.flag(options.OUTPUT, "--write", text="The file; default: RUN's name, .onnx or .pt2."),
    calibrator: Path | None = options.flag(
        options.IMAGES, "--calibrator", text="What `calattn calibrate --out` wrote, to go behind the head."
    ),
    checkpoint: str = options.flag(
        options.IMAGES,
        "--checkpoint",
        default="last",
        text=f"Of a run: {', '.join(RULES)}.",
        complete=options.RULE_NAMES,
    ),
    images: Literal["uint8", "float"] = options.flag(
        options.IMAGES,
        "--input",
        default="uint8",
        text="uint8: pixels, normalised inside the file; float: normalised by the caller.",
    ),
    json: options.Json = False,
) -> None:
    """Write a trained network as a file that runs without calattn: images in, calibrated probabilities out.

    Its input is `images`, of the network's own size and in batches of any
    size; its outputs are `probabilities` and `temperature`. The file is run
    and compared with the network before it is kept.
    """
    from calattn.runs.export import SUFFIX
    from calattn.runs.export import export as write
    from calattn.runs.load import load

    classifier = load(run, checkpoint, calibrator=calibrator)
    path = out or Path(f"{Path(run).name}{SUFFIX[form]}")
    made = write(classifier, path, format=form, pixels=images == "uint8")
    if json:
        print_json({"schema": 1, "command": "export", "file": str(made.path), "difference": made.difference})
        return
    say(str(made.path))
    note(f"checked: differs from the network by at most {made.difference:.1g} on random images")


export.epilog = examples(  # type: ignore[attr-defined]
    "calattn export runs/a --write a.onnx                    pixels in, probabilities out",
    "calattn export runs/a --format torch-export --write a.pt2",
    "calattn export runs/a --calibrator calibrated",
)
