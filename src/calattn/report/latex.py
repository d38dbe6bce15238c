"""Text for LaTeX: what has a meaning there is escaped, what ASCII lacks is written as a command."""

from __future__ import annotations

import unicodedata

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
