"""`make demo`: the whole story on the embedded digits, through the commands that a user would type.

No network, no GPU, about a minute on two cores. The digits are easy and few, so the point is the procedure and the intervals, not
the size of the effect.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path

from rich.console import Console

from calattn.cli.app import run

STORY = (
    (
        "A small ViT without the head, trained with cross-entropy + 0.1·Brier. The run folder keeps everything.",
        "train digits --set model.head=none --out {out}/baseline --threads 1 --overwrite",
    ),
    (
        "The same network, data, seed and loss, with the CalAttn head: a temperature for every image.",
        "train digits --out {out}/calattn --threads 1 --overwrite",
    ),
    (
        "How good are their probabilities, as they stand and with one temperature (T) fitted on the validation images?",
        "evaluate {out}/baseline {out}/calattn --ts --metrics accuracy,nll,brier,ece,adaptive_ece,classwise_ece,smooth_ece"
        " --diagram {out}/reliability.png",
    ),
    (
        "Is the difference more than chance? Both after temperature scaling, paired image by image.",
        "compare {out}/baseline {out}/calattn --ts --metrics accuracy,nll,brier,ece",
    ),
    (
        "The same to look at, before temperature scaling: a page with a slider for the temperature.",
        "compare {out}/baseline {out}/calattn --metrics accuracy,nll,ece --html {out}/page.html",
    ),
    (
        "Calibrated predictions and the calibrator itself, for use elsewhere.",
        "calibrate {out}/calattn --method temperature_nll --out {out}/calibrated --overwrite",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="where the runs go")
    parser.add_argument("--epochs", type=int, help="fewer are quicker")
    arguments = parser.parse_args()
    console, started = Console(highlight=False), time.perf_counter()
    shorter = "" if arguments.epochs is None else f" --epochs {arguments.epochs}"
    for sentence, command in STORY:
        command = command.format(out=arguments.out) + (shorter if command.startswith("train") else "")
        console.print(f"\n[bold]{sentence}[/bold]\n[cyan]$ calattn {command}[/cyan]", soft_wrap=True)
        code = run(shlex.split(command))
        if code != 0:
            sys.exit(code)
    console.print(_ending(arguments.out, time.perf_counter() - started), markup=False, soft_wrap=True)


def _ending(out: Path, seconds: float) -> str:
    return f"""
Done in {seconds:.0f} s. Where everything lies:
  {out}/baseline, {out}/calattn     runs: spec.yaml, log.jsonl, checkpoints/, predictions/, summary.json
  {out}/page.html                        both side by side; open it in a browser
  {out}/reliability.png                  reliability diagrams of both, before and after temperature scaling
  {out}/calibrated                       calibrated predictions and the calibrator

What to read off it: a head that is trained on the same images as the network sees no generalisation gap. Judge CalAttn after
temperature scaling, with the intervals, and on your own data.

Next, on real pictures (a GPU helps; --dry-run says what it would cost here):
  calattn data get cifar10
  calattn train cifar10 --dry-run
  calattn train cifar10
In a checkout the command is .venv/bin/calattn; calattn --help and docs/command-line.md say the rest."""


if __name__ == "__main__":
    main()
