"""Draws docs/images/architecture.svg and docs/images/gallery/, which have no other source: `python docs/pictures.py`."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

IMAGES = Path(__file__).parent / "images"

# Each lane is read from left to right; a tuple holds rooms that stand side by side. tests/docs compares them with the package.
LANES: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...] = (
    (
        "used by all",
        (("errors", "registry", "plugins", "rules", "seeds", "distribution"), ("checks",), ("types",), ("files",)),
    ),
    ("with images", (("data", "backbones"), ("heads", "losses"), ("models",), ("engine", "lightning"))),
    ("in between", (("Predictions: logits, scale, labels",),)),
    ("with arrays", (("readers",), ("metrics",), ("posthoc", "sklearn"), ("comparison",), ("report",))),
    ("compose all", (("runs",), ("sweeps",), ("cli",))),
    ("beside it", (("reproduction", "examples", "benchmarks"),)),
)
_STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2933 } .lane { fill: #6b7785; font-size: 12px }
  rect { fill: #eef3f8; stroke: #7b93ab } .bridge { fill: #fdebd3; stroke: #c98a2e }
  .outside { fill: none; stroke-dasharray: 4 3 }
  path { stroke: #7b93ab; fill: none; marker-end: url(#tip) }
  @media (prefers-color-scheme: dark) {
    text { fill: #e4e9ee } .lane { fill: #9aa7b4 } rect { fill: #24313d; stroke: #7b93ab }
    .bridge { fill: #4a3717 } .outside { fill: none }
  }
"""
_LEFT, _HEIGHT, _GAP, _ARROW, _PITCH = 100, 28, 8, 30, 56


def architecture() -> str:
    """The rooms as SVG, which GitHub and the site show as it is, also in the dark."""
    shapes, right = [], 0
    for number, (title, steps) in enumerate(LANES):
        x, y = _LEFT, 14 + number * _PITCH
        kind = {"in between": ' class="bridge"', "beside it": ' class="outside"'}.get(title, "")
        shapes.append(f'<text class="lane" x="8" y="{y + 19}">{title}</text>')
        for place, rooms in enumerate(steps):
            if place:
                shapes.append(f'<path d="M{x - _GAP + 3} {y + _HEIGHT / 2:g}H{x - _GAP + _ARROW - 4}"/>')
                x += _ARROW - _GAP
            for room in rooms:
                width = 20 + 7.4 * len(room)
                shapes.append(f'<rect{kind} x="{x:g}" y="{y}" width="{width:g}" height="{_HEIGHT}" rx="6"/>')
                shapes.append(f'<text x="{x + width / 2:g}" y="{y + 19}" text-anchor="middle">{room}</text>')
                x += width + _GAP
        right = max(right, x)
    size = f"{right + 6:.0f} {len(LANES) * _PITCH + 4}"
    tip = '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    tip += '<path d="M0 0 8 4 0 8z" style="fill:#7b93ab;stroke:none;marker-end:none"/></marker>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" role="img" aria-label="The rooms of calattn">'
    return "\n".join([head, f"<style>{_STYLE}</style>", f"<defs>{tip}</defs>", *shapes, "</svg>", ""])


def gallery() -> dict[str, Figure]:
    """Every figure of `calattn.report` by its name, of predictions that are too confident and of the same after repair."""
    import torch

    import calattn
    from calattn import report

    def made(seed: int) -> calattn.Predictions:
        generator = torch.Generator().manual_seed(seed)
        logits, doubt = 4 * torch.randn(2000, 10, generator=generator), torch.rand(2000, generator=generator)
        scale = 1.2 + 2 * doubt
        labels = torch.multinomial((logits / scale[:, None]).softmax(1), 1, generator=generator).squeeze(1)
        return calattn.Predictions(
            logits=logits, labels=labels, scale=scale * (1 + 0.1 * torch.randn(2000, generator=generator))
        )

    validation, test = made(0), made(1)
    plain, held = (calattn.Predictions(logits=each.logits, labels=each.labels) for each in (test, validation))
    one = calattn.posthoc.TemperatureScaling().fit(held)(plain)
    models = {"as trained": plain, "one temperature": one, "per image": test}
    epochs = torch.arange(1, 31)
    rows = [
        {
            "epoch": int(epoch),
            "train": {"loss": 2.2 * 0.88**epoch, "accuracy": 1 - 0.8 * 0.86**epoch},
            "validation": {
                "nll": 0.5 + 1.7 * 0.8**epoch + 0.012 * epoch,
                "accuracy": 0.84 - 0.6 * 0.82**epoch,
                "ece": 0.02 + 0.004 * epoch,
            },
        }
        for epoch in epochs.tolist()
    ]
    return {
        "reliability_diagram": report.reliability_diagram(plain),
        "reliability_diagrams": report.reliability_diagrams(models),
        "confidence_histogram": report.confidence_histogram(plain),
        "temperature_curve": report.temperature_curve(plain, validation=held),
        "risk_coverage_curve": report.risk_coverage_curve(models),
        "accuracy_above_confidence": report.accuracy_above_confidence(models),
        "scale_histogram": report.scale_histogram(test),
        "scale_against_correctness": report.scale_against_correctness(test),
        "training_dynamics": report.training_dynamics(rows),
    }


def _png(figure: Figure) -> bytes:
    """With 64 colours, which lines and text do not miss: a third of the bytes."""
    from PIL import Image

    drawn, packed = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, dpi=110, facecolor="white")
    Image.open(drawn).convert("RGB").quantize(64).save(packed, "PNG", optimize=True)
    return packed.getvalue()


def main(folder: Path = IMAGES) -> None:
    (folder / "gallery").mkdir(parents=True, exist_ok=True)
    (folder / "architecture.svg").write_text(architecture())
    for name, figure in gallery().items():
        (folder / "gallery" / f"{name}.png").write_bytes(_png(figure))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
