"""A judgement, as `evaluate` and `compare` give: a table and words for people, a document for programs, and their files."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from calattn.cli import options
from calattn.cli.console import errors_to, json_text, note, print_json, print_table, results_to

if TYPE_CHECKING:
    from calattn import Difference, Evaluation, Predictions
    from calattn.cli.subjects import Blocks, PredictionSet
    from calattn.report import Table

TABLES = (".csv", ".md", ".tex")
PAGES = (".html", ".htm")
_FIGURES = (".png", ".pdf", ".svg")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judgement:
    """What a command found. `document` is its JSON (schema 1): fractions in full precision.

    `table` is shown; `written`, with methods as rows, is for files, and its records are complete. `said` stands under it,
    `notes` are about it, `warnings` doubt it.
    """

    table: Table
    written: Table
    document: dict[str, Any]
    said: Sequence[str] = ()
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()

    def show(self, *, as_json: bool) -> None:
        for doubt in self.warnings:
            warnings.warn(doubt, stacklevel=1)
        if as_json:
            print_json(self.document)
        else:
            print_table(self.table)
            for line in self.said:
                results_to().print(line, markup=False, soft_wrap=True)
        for text in self.notes:
            note(text)

    def write(self, out: Path | None) -> None:
        """The file of --out: the document as .json, else the table for files."""
        if out is not None and out.suffix == ".json":
            write_text(out, json_text(self.document))
        elif out is not None:
            write_table(self.written, out, said=self.said, remarks=[*self.notes, *self.warnings])


def write_table(table: Table, path: Path, *, said: Sequence[str] = (), remarks: Sequence[str] = ()) -> None:
    """As the file's name says: .csv in full precision, .md and .tex as it is shown, with what was said of it."""
    from calattn.report.table import markdown_text

    if path.suffix == ".csv":
        text = table.csv()
    elif path.suffix == ".tex":
        text = dataclasses.replace(table, label=f"calattn-{path.stem}").latex(notes=remarks)
    else:
        text = table.markdown() + "".join(f"\n- {markdown_text(each)}" for each in (*said, *remarks))
        text = text.rstrip("\n") + "\n"
    write_text(path, text)


def pictures_for_page(data_root: Path | None, html: Path | None) -> None:
    if html is None:
        options.unused("is where a page finds its pictures, and there is no --html", data_root=data_root)


def doubts(compared: Sequence[PredictionSet]) -> list[str]:
    """What is to be said on stderr, in JSON and on the page: are they of the same data?"""
    from calattn.comparison import data_warning

    doubt = data_warning((each.name, each.data()) for each in compared)
    return [] if doubt is None else [doubt]


def remark_of(found: Sequence[PredictionSet]) -> str | None:
    """What is to be said of single trainings; nothing of files, or where a spec cannot be read."""
    from calattn.comparison.trainings import remark_on

    if len({each.name for each in found}) < 2 or not all(each.run for each in found):
        return None
    try:
        return remark_on({each.name: each.training() for each in found})
    except ValueError:
        return None


def plain(title: str) -> str:
    """A title on one line."""
    return title.replace("\n", " ")


@contextlib.contextmanager
def working(text: str, source: Predictions | Blocks) -> Iterator[None]:
    """Says what is going on, unless the source has a progress bar of its own."""
    from calattn.cli.subjects import Blocks

    if isinstance(source, Blocks) or not errors_to().is_terminal:
        yield
        return
    with errors_to().status(escape(plain(text))):
        yield


def evaluated(
    sources: Mapping[str, Predictions | Blocks],
    measure: options.Measure,
    target: str | None,
    columns: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Evaluation]:
    """The evaluation of each, by title, with the groups and clusters of its `columns`."""
    import calattn

    found = {}
    for title, source in sources.items():
        with working(f"evaluating {title}", source):
            more = (columns or {}).get(title, {})
            found[title] = calattn.evaluate(source, target=target, **measure.arguments(), **more)
    return found


def compared(
    sources: Mapping[str, Predictions | Blocks], measure: options.Measure, target: str | None, clusters: Any = None
) -> dict[str, dict[str, Difference]]:
    """Each against the first, by title; `clusters` are those of the first's rows."""
    import calattn

    (first, a), *others = sources.items()
    found = {}
    for title, source in others:
        with working(f"comparing {title} with {first}", source):
            measured = measure.compared(target) | {"clusters": clusters}
            found[title] = calattn.compare(a, source, target=target, **measured)
    return found


def write_text(path: Path, text: str) -> None:
    """A result file, whole or not at all."""
    from calattn.files.atomic import atomic_write

    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8")
    note(f"wrote {path}")


def check_outputs(
    inputs: Sequence[Path],
    *,
    out: Path | None,
    html: Path | None = None,
    diagram: Path | None = None,
    overwrite: bool = False,
) -> None:
    """Refuses early what could not be written in the end, and what would replace an input."""
    from calattn.cli.subjects import named
    from calattn.report.page.writing import check_page

    read = {named(path)[1].resolve() for path in inputs}
    for flag, path, suffixes in (
        ("--write", out, (".json", *TABLES)),
        ("--html", html, PAGES),
        ("--diagram", diagram, _FIGURES),
    ):
        check_output(path, suffixes, flag)
        if path is not None and path is html:
            check_page(path, flag, overwrite=overwrite)
        if path is not None and path.resolve() in read:
            raise ValueError(f"{flag} {path} is also read, and would be replaced; name another file")


def check_output(path: Path | None, suffixes: tuple[str, ...], flag: str) -> None:
    """An output file's name has to say its format, and its place has to take it."""
    from calattn.files.atomic import check_writable

    if path is None:
        return
    if path.suffix not in suffixes:
        raise ValueError(f"{flag} {path} must end in {', '.join(suffixes)}")
    if path.is_dir():
        raise ValueError(f"{flag} {path} is a folder; name a file in it")
    check_writable(path)
