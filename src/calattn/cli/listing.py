"""`calattn list`: the names that specs and commands take, with a line about each."""

from __future__ import annotations

import fnmatch
import functools
import inspect
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

import typer

from calattn.cli import options
from calattn.cli.console import note, print_json, results_to
from calattn.cli.errors import examples

Row = tuple[str, str]  # name, what it is
What = Literal[
    "backbones", "losses", "heads", "calibrators", "metrics", "recipes", "datasets", "optimizers", "schedules"
]


def listing(
    what: Annotated[
        What | None, typer.Argument(metavar="WHAT", help="What to list; empty: what can be listed.")
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Argument(
            metavar="PATTERN", help="Part of a name, or a pattern such as 'vit_*_224'; also looks at timm's names."
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="timm's thousand backbones too.")] = False,
    json: options.Json = False,
) -> None:
    """The names that specs and commands take: backbones, losses, heads, calibrators, metrics, recipes, …"""
    if what != "backbones":
        options.unused("adds timm's backbones", all=everything)
    if what is None:
        rows = [(name, about) for name, (about, _) in KINDS.items()]
    else:
        rows = _matching(KINDS[what][1](everything or pattern is not None), pattern)
        if not rows:
            raise ValueError(f"no {what} match {pattern!r}; see them with: calattn list {what}")
    if json:
        items = [{"name": name, "description": description} for name, description in rows]
        print_json({"schema": 1, "command": "list", "what": what, "items": items})
        return
    _show(rows)
    if what == "backbones" and pattern is None and not everything:
        note("and every model of timm: calattn list backbones PATTERN, or --all")


listing.epilog = examples(  # type: ignore[attr-defined]
    "calattn list losses", "calattn list backbones deit", "calattn list optimizers 'ada*' --json"
)


def _show(rows: list[Row]) -> None:
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for row in rows:
        table.add_row(*(cell.replace("[", "\\[") for cell in row))
    results_to().print(table)


def _matching(rows: list[Row], pattern: str | None) -> list[Row]:
    if pattern is None:
        return rows
    wild = pattern if any(sign in pattern for sign in "*?[") else f"*{pattern}*"
    return [row for row in rows if fnmatch.fnmatch(row[0].lower(), wild.lower())]


# A full stop that ends a sentence, not "et al." or "Eq. 1".
_STOP = re.compile(r"(?<!\bal)(?<!\bEq)\.(?:\s|$)")


def sentence_of(thing: Any) -> str:
    """The first sentence of a docstring, on one line.

    >>> sentence_of(sentence_of)
    'The first sentence of a docstring, on one line'
    """
    # inspect.getdoc would give a class without a docstring that of its parent.
    text = " ".join(inspect.cleandoc(thing.__doc__ or "").split("\n\n")[0].split())
    return _STOP.split(text, maxsplit=1)[0]


def _backbones(with_timm: bool) -> list[Row]:
    from calattn.backbones import BACKBONES, FAMILIES

    ours = [(name, "the one that fits the size of the images") for name in FAMILIES]
    ours += [(name, _backbone_line(builder)) for name, builder in sorted(BACKBONES.items())]
    if not with_timm:
        return ours
    import timm

    return ours + [(name, "timm") for name in timm.list_models() if name not in BACKBONES]


def _backbone_line(builder: Any) -> str:
    if isinstance(builder, functools.partial):  # timm's, at another size
        base, preset = builder.args
        return f"{base} with " + ", ".join(f"{key}={value}" for key, value in preset.items())
    return sentence_of(builder) or sentence_of(inspect.getmodule(builder))


def _losses(_: bool) -> list[Row]:
    from calattn.losses import LOSSES

    return [(name, sentence_of(getattr(loss, "args", (loss,))[0])) for name, loss in LOSSES.items()]


def _heads(_: bool) -> list[Row]:
    from calattn.heads import HEADS

    made = {name: builder(num_features=2, num_classes=2, hidden=2, bias=True) for name, builder in HEADS.items()}
    return [(name, sentence_of(type(head))) for name, head in made.items()]


def _calibrators(_: bool) -> list[Row]:
    from calattn.posthoc import CALIBRATORS

    rows = []
    for name, factory in CALIBRATORS.items():
        made = factory()
        given = "" if inspect.isclass(factory) else f"; {_different(made)}"
        rows.append((name, sentence_of(type(made)) + given))
    return rows


def _different(calibrator: Any) -> str:
    """The options in which a preset differs from its class's defaults."""
    plain = type(calibrator)().options()
    return ", ".join(f"{key}={value}" for key, value in calibrator.options().items() if value != plain[key])


def _metrics(_: bool) -> list[Row]:
    from calattn.metrics import METRICS

    def line(name: str) -> str:
        return f"{METRICS.title(name)} ({METRICS[name].better} is better): {_STOP.split(METRICS.text(name), maxsplit=1)[0]}"

    return [(name, line(name)) for name in METRICS]


def _recipes(_: bool) -> list[Row]:
    from calattn.runs.recipes import RECIPES

    return list(RECIPES.items())


def _datasets(_: bool) -> list[Row]:
    from calattn.data import DATASETS

    own = [
        ("imagefolder:PATH", "your images: PATH/train/CLASS/*.png, PATH/test/CLASS/*.png"),
        ("parquet:PATH", "your images in the layout of the Hugging Face hub"),
    ]
    return [(name, dataset.title) for name, dataset in DATASETS.items()] + own


def _optimizers(_: bool) -> list[Row]:
    from timm.optim import list_optimizers

    return [(str(name), str(text)) for name, text in list_optimizers(with_description=True)]


_SCHEDULES = {
    "cosine": "falls along half a cosine",
    "multistep": "times decay_rate at each of decay_milestones",
    "step": "times decay_rate every decay_epochs",
    "poly": "falls as a power of the time that is left",
    "tanh": "falls along a hyperbolic tangent",
    "plateau": "times decay_rate when validation stops improving",
    "constant": "stays as it is, after the warm-up",
}


def _schedules(_: bool) -> list[Row]:
    from calattn.engine.optim import SCHEDULES

    return [(name, _SCHEDULES.get(name, "")) for name in SCHEDULES]


KINDS: dict[str, tuple[str, Callable[[bool], list[Row]]]] = {
    "backbones": ("networks (model.backbone of a spec)", _backbones),
    "losses": ("what is minimised (loss.name)", _losses),
    "heads": ("what reads the features and scales the logits (model.head)", _heads),
    "calibrators": ("post-hoc methods (calattn calibrate --method)", _calibrators),
    "metrics": ("what is measured (calattn evaluate --metrics)", _metrics),
    "recipes": ("runs that come with calattn (calattn train NAME)", _recipes),
    "datasets": ("images (data.name)", _datasets),
    "optimizers": ("timm's and torch's (optimizer.name)", _optimizers),
    "schedules": ("of the learning rate (schedule.name)", _schedules),
}
