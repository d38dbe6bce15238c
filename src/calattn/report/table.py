"""A table, and the four ways to write it: for a terminal, in Markdown, in LaTeX, and its numbers as CSV."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from rich.cells import cell_len
from rich.markup import escape
from rich.table import Column
from rich.table import Table as RichTable
from rich.text import Text

_BOLD = ("bold::", "::bold")  # what LaTeX needs no escape for, and no number holds
_STYLES = {"best": "bold", "better": "green", "worse": "red"}


class Cell(NamedTuple):
    """A number as text, its interval, and a mark: in a terminal bold, green or red, in Markdown and LaTeX bold if good."""

    text: str
    interval: str = ""
    mark: Literal["", "best", "better", "worse"] = ""

    def beside(self, bold: tuple[str, str] = ("", "")) -> str:
        """Number and interval on one line, a good number between the two marks of `bold`."""
        start, end = bold if self.mark in ("best", "better") else ("", "")
        return f"{start}{self.text}{end} {self.interval}".rstrip()

    def above(self) -> str:
        """The interval dim under the number, in Rich's markup."""
        text = escape(self.text) + (f"\n[dim]{escape(self.interval)}[/dim]" if self.interval else "")
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
        table = RichTable(caption=escape(self.caption), caption_style="dim", caption_justify="left")
        first, *others = self.header
        table.add_column(escape(first), no_wrap=self.whole_names, overflow="fold")
        for name in others:
            table.add_column(escape(name), justify="right", overflow="fold")
        for row in self.rows:
            table.add_row(*(each.above() if isinstance(each, Cell) else escape(each) for each in row))
        return table

    def __rich__(self) -> RichTable:
        return self.terminal()

    def markdown(self) -> str:
        """For a README or an issue."""

        def line(cells: Sequence[str]) -> str:
            return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |\n"

        rule = "|---|" + "---:|" * (len(self.header) - 1) + "\n"
        return line(self.header) + rule + "".join(map(line, self._lines("**", "**"))) + f"\n{self.caption}.\n"

    def latex(self, notes: Sequence[str] = ()) -> str:
        """For a paper: `booktabs`, everything escaped, nothing but ASCII; notes stand under it, and `label` is to refer to."""

        def spelt(text: str) -> str:
            return latex_text(text.replace("“", "``").replace("”", "''"))

        def line(cells: Sequence[str]) -> str:
            texts = (spelt(cell).replace(_BOLD[0], "\\textbf{").replace(_BOLD[1], "}") for cell in cells)
            return " & ".join(texts) + " \\\\"

        body = "\n".join(map(line, self._lines(*_BOLD)))
        under = "".join(f"\\par\\smallskip\\footnotesize {spelt(note)}\n" for note in notes)
        columns = "l" + "r" * (len(self.header) - 1)
        return (
            "% needs \\usepackage{booktabs}\n\\begin{table}\n\\centering\n"
            f"\\caption{{{spelt(self.caption)}.}}\n\\label{{tab:{self.label}}}\n\\begin{{tabular}}{{{columns}}}\n"
            f"\\toprule\n{line(self.header)}\n\\midrule\n{body}\n\\bottomrule\n\\end{{tabular}}\n{under}\\end{{table}}\n"
        )

    def csv(self) -> str:
        """The records, numbers in full precision and missing ones empty; without records, the cells as they are shown."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if self.records:
            writer.writerow(self.records[0])
            writer.writerows(each.values() for each in self.records)
        else:
            writer.writerows([self.header, *self._lines()])
        return text.getvalue()

    def _lines(self, *bold: str) -> list[list[str]]:
        marks = (bold[0], bold[1]) if bold else ("", "")
        return [[each.beside(marks) if isinstance(each, Cell) else each for each in row] for row in self.rows]


_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"$<$",
    ">": r"$>$",
    "|": r"$|$",
    "[": r"{[}",  # after a \\ a bracket would be read as a length
    "]": r"{]}",
}
_UNICODE = {
    "λ": r"$\lambda$",
    "α": r"$\alpha$",
    "–": "--",
    "−": r"$-$",
    "±": r"$\pm$",
    "≥": r"$\ge$",
    "≤": r"$\le$",
    "→": r"$\to$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "∞": r"$\infty$",
    "…": r"\dots{}",
    "ł": r"\l{}",
    "‖": r"$\|$",
    "’": "'",
    "\n": " ",
}
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
    return Text.from_markup(str(text)).plain
