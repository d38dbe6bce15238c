"""A table, and the four ways to write it: for a terminal, in Markdown, in LaTeX, and its numbers as CSV."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from calattn.report.latex import latex_text

if TYPE_CHECKING:
    import rich.table

_STYLES = {"best": "bold", "better": "green", "worse": "red"}


class Cell(NamedTuple):
    """A number as text, its interval, and in a terminal a mark: bold, green or red."""

    text: str
    interval: str = ""
    mark: Literal["", "best", "better", "worse"] = ""

    def beside(self) -> str:
        """Number and interval on one line."""
        return f"{self.text} {self.interval}".rstrip()

    def above(self) -> str:
        """The interval dim under the number, in Rich's markup."""
        from rich.markup import escape

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
    lead: int = 1
    group: int = 1
    whole_names: bool = False

    def terminal(self) -> rich.table.Table:
        """For Rich's console."""
        from rich.markup import escape
        from rich.table import Table as RichTable

        table = RichTable(caption=escape(self.caption), caption_style="dim", caption_justify="left")
        first, *others = self.header
        table.add_column(escape(first), no_wrap=self.whole_names)
        for name in others:
            table.add_column(escape(name), justify="right", overflow="fold")
        for row in self.rows:
            table.add_row(*(each.above() if isinstance(each, Cell) else escape(each) for each in row))
        return table

    def __rich__(self) -> rich.table.Table:
        return self.terminal()

    def markdown(self) -> str:
        """For a README or an issue."""

        def line(cells: Sequence[str]) -> str:
            return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |\n"

        rule = "|---|" + "---:|" * (len(self.header) - 1) + "\n"
        return line(self.header) + rule + "".join(map(line, self._lines())) + f"\n{self.caption}.\n"

    def latex(self, notes: Sequence[str] = ()) -> str:
        """For a paper: `booktabs`, everything escaped, nothing but ASCII; notes stand under it."""

        def spelt(text: str) -> str:
            return latex_text(text.replace("“", "``").replace("”", "''"))

        def line(cells: Sequence[str]) -> str:
            return " & ".join(map(spelt, cells)) + " \\\\"

        body = "\n".join(map(line, self._lines()))
        under = "".join(f"\\par\\smallskip\\footnotesize {spelt(note)}\n" for note in notes)
        return (
            "% needs \\usepackage{booktabs}\n\\begin{table}\n\\centering\n"
            f"\\caption{{{spelt(self.caption)}.}}\n\\begin{{tabular}}{{l{'r' * (len(self.header) - 1)}}}\n"
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

    def _lines(self) -> list[list[str]]:
        return [[each.beside() if isinstance(each, Cell) else each for each in row] for row in self.rows]
