"""A table, and the four ways to write it: for a terminal, in Markdown, in LaTeX, and its numbers as CSV."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from rich.cells import cell_len
from rich.markup import escape
from rich.table import Column
from rich.table import Table as RichTable
from rich.text import Text

from calattn.files.text import cell_text, visible

_STYLES = {"best": "bold", "better": "green", "worse": "red"}


class Cell(NamedTuple):
    """A number as text, its interval, and a mark: in a terminal bold, green or red, in Markdown and LaTeX bold if good."""

    text: str
    interval: str = ""
    mark: Literal["", "best", "better", "worse"] = ""

    def beside(self, bold: str = "{}", spelt: Callable[[str], str] = str) -> str:
        """Number and interval on one line, a good number within `bold`; each as it is `spelt` in the format."""
        text = spelt(self.text)
        if self.mark in ("best", "better"):
            text = bold.replace("{}", text)
        return f"{text} {spelt(self.interval)}".rstrip()

    def above(self) -> str:
        """The interval dim under the number, in Rich's markup."""
        text = _markup(self.text) + (f"\n[dim]{_markup(self.interval)}[/dim]" if self.interval else "")
        return f"[{_STYLES[self.mark]}]{text}[/]" if self.mark else text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """What is measured, as text for people (`rows`) and in full precision for programs (`records`, one for each number).

    Where a terminal is too narrow, the first `lead` columns are repeated and `group` neighbours stay together. A name in a
    `whole_names` table is never broken: two names cut to the same letters would be one.

    >>> table = Table(header=["", "a|b"], rows=[["ECE", Cell("1.20", "[1.00, 1.40]")]], caption="per cent")
    >>> print(table.markdown())
    |  | a\\|b |
    |---|---:|
    | ECE | 1.20 [1.00, 1.40] |
    <BLANKLINE>
    per cent.
    <BLANKLINE>
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    caption: str
    records: Sequence[Mapping[str, Any]] = ()
    label: str = "calattn"
    lead: int = 1
    group: int = 1
    whole_names: bool = False

    def terminal(self) -> RichTable:
        """For Rich's console."""
        table = RichTable(caption=_markup(self.caption), caption_style="dim", caption_justify="left")
        first, *others = self.header
        table.add_column(_markup(first), no_wrap=self.whole_names, overflow="fold")
        for name in others:
            table.add_column(_markup(name), justify="right", overflow="fold")
        for row in self.rows:
            table.add_row(*(each.above() if isinstance(each, Cell) else _markup(each) for each in row))
        return table

    def __rich__(self) -> RichTable:
        return self.terminal()

    def markdown(self) -> str:
        """For a README or an issue."""
        rule = "|---|" + "---:|" * (len(self.header) - 1) + "\n"
        lines = self._lines(markdown_text, "**{}**", spelt_number=str)
        rows = ["| " + " | ".join(cells) + " |\n" for cells in lines]
        return rows[0] + rule + "".join(rows[1:]) + f"\n{markdown_text(self.caption)}.\n"

    def latex(self, notes: Sequence[str] = ()) -> str:
        """For a paper: `booktabs`, everything escaped, nothing but ASCII; notes stand under it, and `label` is to refer to."""

        def spelt(text: str) -> str:
            return latex_text(text.replace("“", "``").replace("”", "''"))

        head, *body = (" & ".join(cells) + " \\\\" for cells in self._lines(spelt, "\\textbf{{}}", spelt_number=spelt))
        rows = "\n".join(body)
        under = "".join(f"\\par\\smallskip\\footnotesize {spelt(note)}\n" for note in notes)
        columns = "l" + "r" * (len(self.header) - 1)
        label = re.sub(r"[^A-Za-z0-9:.-]+", "-", self.label)
        return (
            "% needs \\usepackage{booktabs}\n\\begin{table}\n\\centering\n"
            f"\\caption{{{spelt(self.caption)}.}}\n\\label{{tab:{label}}}\n\\begin{{tabular}}{{{columns}}}\n"
            f"\\toprule\n{head}\n\\midrule\n{rows}\n\\bottomrule\n\\end{{tabular}}\n{under}\\end{{table}}\n"
        )

    def csv(self) -> str:
        """The records, numbers in full precision and missing ones empty; without records, the cells as they are shown."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        lines = [list(self.records[0]), *(each.values() for each in self.records)] if self.records else self._lines(str)
        for line in lines:
            writer.writerow([cell_text(each) if isinstance(each, str) else each for each in line])
        return text.getvalue()

    def _lines(
        self, spelt: Callable[[str], str], bold: str = "{}", *, spelt_number: Callable[[str], str] = str
    ) -> list[list[str]]:
        """Head and rows, names and numbers as a format spells them."""

        def cell(each: str | Cell) -> str:
            return each.beside(bold, spelt_number) if isinstance(each, Cell) else spelt(each)

        return [[cell(each) for each in row] for row in (self.header, *self.rows)]


def _markup(text: str) -> str:
    return escape(visible(text))


_MARKDOWN = re.compile(r"[\\`*_{}\[\]<>|~$&#]|^[-+=]|(?<=^\d)[.)](?=\s)")


def markdown_text(text: str) -> str:
    """Plain text as Markdown on one line.

    >>> print(markdown_text("a_b <i>|[x](y)"))
    a\\_b \\<i\\>\\|\\[x\\](y)
    """
    return _MARKDOWN.sub(r"\\\g<0>", visible(text).replace("\n", " "))


_SPECIAL = {character: rf"\{character}" for character in "{}$&#%_"} | {
    character: f"${character}$" for character in "<>|"
}
_SPECIAL |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_SPECIAL |= {"[": r"{[}", "]": r"{]}"}  # after a \\ a bracket would be read as a length
_MATHS = {
    "λ": "lambda",
    "α": "alpha",
    "±": "pm",
    "≥": "ge",
    "≤": "le",
    "→": "to",
    "×": "times",
    "·": "cdot",
    "∞": "infty",
}
_UNICODE = {character: rf"$\{name}$" for character, name in _MATHS.items()}
_UNICODE |= {"–": "--", "−": "$-$", "…": r"\dots{}", "ł": r"\l{}", "‖": r"$\|$", "’": "'", "\n": " "}
_ACCENTS = {"\u0301": r"\'", "\u0300": r"\`", "\u0308": r"\"", "\u0302": r"\^", "\u0303": r"\~", "\u0327": r"\c "}


def latex_text(text: str) -> str:
    """Plain text as LaTeX, in ASCII; a character that nobody has translated becomes a question mark, not an error.

    >>> latex_text("λ = 0.1 & 50 % of p_y")
    '$\\\\lambda$ = 0.1 \\\\& 50 \\\\% of p\\\\_y'
    """
    return "".join(_character(character) for character in text)


def _character(character: str) -> str:
    known = _SPECIAL.get(character) or _UNICODE.get(character)
    if known is not None:
        return known
    if character.isascii():
        return character if character.isprintable() else " "
    parts = unicodedata.normalize("NFD", character)
    if len(parts) == 2 and parts[0].isascii() and parts[1] in _ACCENTS:
        return f"{_ACCENTS[parts[1]]}{{{parts[0]}}}"
    return "?"


_RULE = 3  # a column's two spaces and one rule; the first column has one rule more
_HEADER = 16  # characters of a title before it is folded: file names are longer than numbers


def parted(table: RichTable, width: int, *, lead: int = 1, group: int = 1) -> list[RichTable]:
    """The table itself if it fits into `width`; else several, each with the first `lead` columns and some of the others.

    `group` neighbouring columns stay together, unless one group is too wide still: then each is a table to be parted like any
    other, and the repeated columns but the first come once in it. Where one column is too wide, intervals are broken after
    the comma; numbers never are, and a table that cannot be so narrow is wider than the terminal.
    """
    columns = table.columns
    if 1 + sum(_RULE + _widest(column, header=True) for column in columns) <= width:
        return [table]
    names, others = columns[:lead], columns[lead:]
    groups = [others[start : start + group] for start in range(0, len(others), group)]
    least = _widest(names[0], header=True) if names[0].no_wrap else _narrowest(names[0])
    room = width - 1 - sum(_RULE + each for each in (least, *map(_comfortable, names[1:])))
    widest = max(sum(_RULE + _comfortable(column) for column in part) for part in groups)
    if group > 1 and widest > room:
        alone = [_part(table, [*names, *part], is_last=part is groups[-1]) for part in groups]
        return [each for whole in alone for each in parted(whole, width)]
    tables = -(-len(groups) // max(1, room // widest))
    size = -(-len(groups) // tables)
    result = []
    for start in range(0, len(groups), size):
        chosen = [*names, *(column for part in groups[start : start + size] for column in part)]
        widths = [_comfortable(column) if widest <= room else _narrowest(column) for column in chosen[1:]]
        part = _part(table, chosen, is_last=start + size >= len(groups), widths=widths)
        needed = 1 + _RULE + least + sum(_RULE + each for each in widths)
        part.width = needed if needed > width else None
        result.append(part)
    return result


def _part(whole: RichTable, columns: Sequence[Column], *, is_last: bool, widths: Sequence[int] = ()) -> RichTable:
    """Some columns of a table, its caption under the last; of these widths, those without one as wide as they need."""
    part = RichTable(title=whole.title, caption=whole.caption if is_last else None)
    part.caption_style, part.caption_justify = whole.caption_style, whole.caption_justify
    for column, width in itertools.zip_longest(columns, [None, *widths]):
        part.add_column(
            column.header, justify=column.justify, no_wrap=column.no_wrap, overflow=column.overflow, width=width
        )
    for cells in zip(*(column.cells for column in columns), strict=True):
        part.add_row(*cells)
    return part


def _comfortable(column: Column) -> int:
    """No cell is broken; a long title may be folded."""
    return max(_widest(column, header=False), min(_HEADER, _widest(column, header=True)))


def _widest(column: Column, *, header: bool) -> int:
    texts = [*column.cells, *([column.header] if header else [])]
    return max(cell_len(line) for text in texts for line in _plain(text).split("\n"))


def _narrowest(column: Column) -> int:
    """The longest word: what may be broken is the space after an interval's comma, or between a name's words."""
    return max((cell_len(word) for text in column.cells for word in _plain(text).split()), default=1)


def _plain(text: object) -> str:
    return Text.from_markup(str(text), emoji=False).plain
