"""Parting a table: its columns over several tables where the terminal is narrow, so that no number is cut or broken."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.table import Column, Table
from rich.text import Text

_RULE = 3  # a column's two spaces and one rule; the first column has one rule more
_HEADER = 16  # characters of a title before it is folded: file names are longer than numbers


def parted(table: Table, width: int, *, lead: int = 1, group: int = 1) -> list[Table]:
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
    first = [_narrowest(column) if not column.no_wrap else _widest(column, header=True) for column in names[:1]]
    first += [_comfortable(column) for column in names[1:]]
    room = width - 1 - sum(_RULE + each for each in first)
    widest = max(sum(_RULE + _comfortable(column) for column in part) for part in groups)
    if group > 1 and widest > room:
        alone = [_some(table, [*names, *part], is_last=part is groups[-1]) for part in groups]
        return [each for whole in alone for each in parted(whole, width)]
    tables = -(-len(groups) // max(1, room // widest))
    size = -(-len(groups) // tables)
    result = []
    for start in range(0, len(groups), size):
        chosen = [*names, *(column for part in groups[start : start + size] for column in part)]
        result.append(_table(table, chosen, width, fits=widest <= room, is_last=start + size >= len(groups)))
    return result


def _table(whole: Table, columns: Sequence[Column], width: int, *, fits: bool, is_last: bool) -> Table:
    """Some columns of a table, its caption under the last."""
    part = Table(title=whole.title, caption=whole.caption if is_last else None)
    part.caption_style, part.caption_justify = whole.caption_style, whole.caption_justify
    names, *numbers = columns
    widths = [_comfortable(column) if fits else _narrowest(column) for column in numbers]
    least = _widest(names, header=True) if names.no_wrap else _narrowest(names)
    needed = 1 + _RULE + least + sum(_RULE + each for each in widths)
    if needed > width:
        part.width = needed
    part.add_column(names.header, no_wrap=names.no_wrap, overflow="fold")
    for column, each in zip(numbers, widths, strict=True):
        part.add_column(column.header, justify=column.justify, overflow="fold", width=each)
    for cells in zip(*(column.cells for column in columns), strict=True):
        part.add_row(*cells)
    return part


def _some(whole: Table, columns: Sequence[Column], *, is_last: bool) -> Table:
    part = Table(title=whole.title, caption=whole.caption if is_last else None)
    part.caption_style, part.caption_justify = whole.caption_style, whole.caption_justify
    for column in columns:
        part.add_column(column.header, justify=column.justify, no_wrap=column.no_wrap)
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
