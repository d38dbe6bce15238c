"""Text and tables for LaTeX: what has a meaning there is escaped, what ASCII lacks is written as a command."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence

from calattn.metrics.state import Options
from calattn.report.tables import Differences, Evaluations, Grid, difference_grid, evaluation_grid

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


def evaluation_latex(evaluations: Evaluations) -> str:
    """Evaluations side by side, with their intervals."""
    return latex_table(evaluation_grid(evaluations))


def difference_latex(
    comparisons: Mapping[str, Differences],
    *,
    baseline: str,
    level: float,
    options: Options | None = None,
    notes: Sequence[str] = (),
) -> str:
    """Each comparison's difference from the baseline."""
    return latex_table(difference_grid(comparisons, baseline=baseline, level=level, options=options), notes)


def latex_table(grid: Grid, notes: Sequence[str] = ()) -> str:
    """A table for a paper: `booktabs`, everything escaped, nothing but ASCII; notes stand under it."""

    def spelt(text: str) -> str:
        return latex_text(text.replace("“", "``").replace("”", "''"))

    def line(cells: Sequence[str]) -> str:
        return " & ".join(map(spelt, cells)) + " \\\\"

    body = "\n".join(map(line, grid.rows))
    under = "".join(f"\\par\\smallskip\\footnotesize {spelt(note)}\n" for note in notes)
    return (
        "% needs \\usepackage{booktabs}\n\\begin{table}\n\\centering\n"
        f"\\caption{{{spelt(grid.caption)}}}\n\\begin{{tabular}}{{l{'r' * (len(grid.header) - 1)}}}\n"
        f"\\toprule\n{line(grid.header)}\n\\midrule\n{body}\n\\bottomrule\n\\end{{tabular}}\n{under}\\end{{table}}\n"
    )


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
