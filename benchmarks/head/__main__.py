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
from pathlib import Path

from benchmarks.head.measure import measure
from benchmarks.head.summary import summarise
from benchmarks.head.tables import table


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
