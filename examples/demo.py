"""`make demo`: what a head is worth, on the embedded digits, through the commands that a user would type.

No network, no GPU, about two minutes on two cores: a network without a head, one temperature, the paper's joint training, and the
head that is taught afterwards; on clean test images and on the same under fifteen corruptions.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path

from rich.console import Console

from calattn.cli.app import run

CLEAN = "{out}/network {out}/ts-clean {out}/joint {out}/joint-ts-clean {out}/taught"
CORRUPTED = "{out}/network {out}/ts-corrupted {out}/joint {out}/joint-ts-corrupted {out}/taught --split test-all-5"
PICTURE = (
    "{out}/network {out}/ts-clean {out}/joint-ts-clean {out}/taught {out}/network/predictions/test-all-5 {out}/ts-corrupted "
    "{out}/joint-ts-corrupted {out}/taught/predictions/test-all-5"
)
METRICS = "--metrics accuracy,nll,brier,ece"

STORY = (
    (
        "A small vision transformer, trained with cross-entropy. The run folder keeps everything.",
        "train digits --set model.head=none --out {out}/network --threads 1 --overwrite",
    ),
    (
        "The paper's way: the same architecture, trained together with a head that gives each image its own temperature, by "
        "cross-entropy and Brier score.",
        "train digits --set model.head=calattn --set loss.name=ce_brier --out {out}/joint --threads 1 --overwrite",
    ),
    (
        "Our way: the first network as it is, and a head taught afterwards, from distorted training images.",
        "teach {out}/network --out {out}/taught --threads 1 --overwrite",
    ),
    (
        "What do they say about test images that noise, blur, fog, … have changed?",
        "predict {out}/network --corrupt all-5 --threads 1",
        "predict {out}/joint --corrupt all-5 --threads 1",
        "predict {out}/taught --corrupt all-5 --threads 1",
    ),
    (
        "The usual repair: one temperature for all images, fitted on the validation images; for the paper's way too.",
        *(
            f"calibrate {{out}}/{run} --split {split} --out {{out}}/{name} --overwrite {METRICS}"
            for run, prefix in (("network", "ts"), ("joint", "joint-ts"))
            for split, name in (("test", f"{prefix}-clean"), ("test-all-5", f"{prefix}-corrupted"))
        ),
    ),
    (
        "Clean test images: no head, one temperature, the paper's way without and with one temperature, ours.",
        f"evaluate {CLEAN} {METRICS}",
    ),
    (
        "The same images under fifteen corruptions, at the highest severity.",
        f"evaluate {CORRUPTED} {METRICS}",
    ),
    (
        "Is the difference from one temperature more than chance? First on clean, then on corrupted images.",
        f"compare {{out}}/ts-clean {{out}}/taught {METRICS}",
        f"compare {{out}}/ts-corrupted {{out}}/taught --split test-all-5 {METRICS}",
    ),
    (
        "The same to look at: a picture, clean above and corrupted below, and a page with a slider for the temperature.",
        f"evaluate {PICTURE} --metrics ece --bootstrap 0 --diagram {{out}}/reliability.png",
        "compare {out}/ts-corrupted {out}/taught --split test-all-5 --metrics nll,ece --html {out}/page.html",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="where the runs go")
    parser.add_argument("--epochs", type=int, help="fewer are quicker")
    arguments = parser.parse_args()
    console, started = Console(highlight=False), time.perf_counter()
    shorter = "" if arguments.epochs is None else f" --epochs {arguments.epochs}"
    for sentence, *commands in STORY:
        console.print(f"\n[bold]{sentence}[/bold]")
        for command in commands:
            line = command.format(out=arguments.out) + (shorter if command.startswith("train") else "")
            console.print(f"[cyan]$ calattn {line}[/cyan]", soft_wrap=True)
            code = run(shlex.split(line))
            if code != 0:
                sys.exit(code)
    console.print(_ending(arguments.out, time.perf_counter() - started), markup=False, soft_wrap=True)


def _ending(out: Path, seconds: float) -> str:
    return f"""
Done in {seconds:.0f} s. Where everything lies:
  {out}/network, joint, taught   runs: spec.yaml, log.jsonl, checkpoints/, predictions/, summary.json
  {out}/reliability.png          reliability diagrams of four, clean and corrupted
  {out}/page.html                one temperature and the taught head side by side; open it in a browser

What to read off it: on 629 clean images the differences may be chance, and the tables say where they are. On corrupted images
they are not; the intervals there treat the fifteen copies of an image as one (629 clusters), not as fifteen images.
docs/method.md has the same on CIFAR-10 and CIFAR-100, and how it works.

Next, on real pictures (a GPU helps; --dry-run says what it would cost here):
  calattn data get cifar10
  calattn train cifar10 --dry-run
  calattn train cifar10
A network that you have trained already: calattn teach --help. In a checkout the command is .venv/bin/calattn."""


if __name__ == "__main__":
    main()
