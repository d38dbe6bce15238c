"""The section of REPRODUCTION.md on what the head learned: no claim of the paper, but the likely reason for the verdicts."""

from __future__ import annotations

from collections.abc import Sequence

from calattn.report.style import number
from reproduction.claim_report import NONE, markdown_table
from reproduction.evidence import Results
from reproduction.results import CellResult


def learned(stored: Sequence[CellResult], results: Results) -> str:
    """Every network with CalAttn: how well it knows its training images, its mean scale, and the temperature left to find."""
    found = [result for result in stored if result.cell.head == "calattn" and "scale" in result.log[-1]["validation"]]
    if not found:
        return "No results.\n"
    header = ["network", "training accuracy", "validation accuracy", "mean s", "T* after s", "T* without the head"]
    text = (
        "The head is trained with the network, on its training images. Where a network has learned these by heart, sharper "
        "probabilities lower the training loss, and s can sharpen all images at once (mean s below 1) at the price of those that "
        "it has not seen; the temperature that validation images then ask for, T*, takes it back. Last epoch; T* of the lowest "
        f"validation NLL. {_counts(found, results)}\n\n"
    )
    return text + markdown_table(header, [_row(result, results) for result in found])


def _row(result: CellResult, results: Results) -> list[str]:
    last = result.log[-1]
    accuracies = (last["train"].get("accuracy"), last["validation"].get("accuracy"))
    temperatures = [NONE if each is None else f"{each:.2f}" for each in _temperatures(result, results)]
    scale = f"{last['validation']['scale']['mean']:.3f}"
    return [f"`{result.cell.name}`", *(number("accuracy", each) for each in accuracies), scale, *temperatures]


def _temperatures(result: CellResult, results: Results) -> tuple[float | None, float | None]:
    """T* of the network and of its twin without the head."""
    twin = results.get(result.cell.twin)
    without = twin.temperature(objective="nll") if isinstance(twin, CellResult) else None
    return result.temperature(objective="nll"), without


def _counts(found: Sequence[CellResult], results: Results) -> str:
    pairs = [_temperatures(result, results) for result in found]
    known = [(after, without) for after, without in pairs if after is not None and without is not None]
    below = sum(result.log[-1]["validation"]["scale"]["mean"] < 1 for result in found)
    higher = sum(after > without for after, without in known)
    return (
        f"The mean of s is below 1 in {below} of {len(found)} networks, and T* is higher with the head than without it in "
        f"{higher} of {len(known)} pairs."
    )
