"""Tables: CSV (also .tsv and compressed) and Parquet, read batch by batch through Arrow."""

from __future__ import annotations

import collections
import contextlib
import csv
import io
import itertools
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from calattn.errors import Args, Words
from calattn.files.predictions import PredictionFileError, not_whole
from calattn.readers.fields import Field, FieldFile, FieldType, Role, Values

_SAMPLED = 50  # lines of a text file that show which columns are words
_EXPANDED = 1 << 16  # bytes of a gzip file that show how much larger the text is; it may be a thousand times
_LONGEST_LINE = 1 << 24
_TEXT = (pa.string(), pa.large_string())
_GZIP = b"\x1f\x8b"
_MISSING = frozenset(pa.csv.ConvertOptions().null_values)

_BINARY = {
    b"PK\x03\x04": "a zip archive (.npz, .pt, .xlsx)",
    b"\x93NUMPY": "an .npy array",
    b"PAR1": "Parquet",
    _GZIP: "gzip (.csv.gz)",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}

_MARKS = ";\t|"  # other than the comma
_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+(e[+-]?\d+)?", re.IGNORECASE)
_DECIMAL_POINT = re.compile(r"[+-]?\d*\.\d+(e[+-]?\d+)?", re.IGNORECASE)
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")

# Arrow's message about a line with a field too many or too few, and about a cell that it cannot convert.
_FIELDS = re.compile(
    r"CSV parse error: Row #(?P<line>\d+): Expected (?P<want>\d+) columns, got (?P<have>\d+): (?P<text>.*)", re.DOTALL
)
_CELL = re.compile(
    r"In CSV column #(?P<column>\d+): Row #(?P<line>\d+): "
    r"(?P<what>CSV conversion error to \w+: (?:invalid value '(?P<value>.*)'$)?.*)",
    re.DOTALL,
)


class CsvFile(FieldFile):
    """The columns of a delimited text file with a header line."""

    is_text = is_table = True

    def __init__(
        self,
        path: Path,
        address: str | None = None,
        *,
        delimiter: str | None = None,
        header: Sequence[str] | None = None,
    ) -> None:
        super().__init__(path, address)
        tabs = path.name.lower().removesuffix(".gz").endswith(".tsv")
        self._header = None if header is None else list(header)
        self._check_text()
        self._longest = 0
        self._delimiter = delimiter or ("\t" if tabs else _delimiter_in(self._first_line()))
        first, *lines = self._first_lines()
        if self._header is not None:
            first, lines = self._header, [first, *lines]
        self._check_header(first)
        self._names = first
        self._decimal = _decimal_mark_in(lines, self._delimiter)
        columns = zip(*(line for line in lines if len(line) == len(first)), strict=True)
        words = {name for name, cells in zip(first, columns, strict=False) if _are_words(cells)}
        self.fields = {
            name: Field(rows=None, tail=(), type="text" if name in words else "cell", dtype="text") for name in first
        }

    def blocks(self, wanted: Mapping[str, Role], rows: int) -> Iterator[dict[str, Values]]:
        types = {name: pa.float64() if role == "real" else pa.string() for name, role in wanted.items()}
        with self._damage(), self._open(types) as reader:
            for table in _rebatched(reader, rows):
                yield {name: _column(table[name]) for name in wanted}

    @property
    def num_bytes(self) -> int:
        return _text_bytes(self.path) if self.path.suffix.lower() == ".gz" else super().num_bytes

    @property
    def _block(self) -> int:
        """Bytes that Arrow parses at once: no line may be longer."""
        return max(1 << 20, 4 * self._longest)

    def _open(self, types: Mapping[str, pa.DataType]) -> pa.csv.CSVStreamingReader:
        return pa.csv.open_csv(
            self.path,
            # One thread: only then does Arrow know the line numbers of what it cannot parse.
            read_options=pa.csv.ReadOptions(use_threads=False, block_size=self._block, column_names=self._header),
            # No handler of invalid rows: Arrow cannot pass one that is not UTF-8, but it can report it.
            parse_options=pa.csv.ParseOptions(delimiter=self._delimiter),
            convert_options=pa.csv.ConvertOptions(
                column_types=types, include_columns=list(types), strings_can_be_null=True, decimal_point=self._decimal
            ),
        )

    def _first_line(self) -> str:
        with self._text() as text:
            return next((line.rstrip("\r\n") for line in self._lines(text) if line.strip()), "")

    def _lines(self, text: io.TextIOWrapper) -> Iterator[str]:
        """Some lines from the front, none of them without an end."""
        number, seen = 0, 0
        while seen < _LONGEST_LINE and (line := text.readline(_LONGEST_LINE + 1)):
            number, seen = number + 1, seen + len(line)
            self._longest = max(self._longest, len(line))
            if len(line) > _LONGEST_LINE:
                raise self._too_long(f"line {number}", _LONGEST_LINE)
            yield line

    def _too_long(self, line: str, limit: int) -> PredictionFileError:
        problem = f"{line} is longer than {limit >> 20} MiB"
        return PredictionFileError(problem, subject=self.address, remedy="a table has one line per row")

    @contextlib.contextmanager
    def _text(self) -> Iterator[io.TextIOWrapper]:
        with self._damage(), pa.input_stream(str(self.path), compression="detect") as stream:
            # Other columns may hold text of any encoding; a name that cannot be decoded is one we do not want.
            yield io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace", newline="")

    def _first_lines(self) -> list[list[str]]:
        """The header and some lines after it, which show what is words; the first is empty if there is none."""
        with self._text() as text:
            lines = (line for line in csv.reader(self._lines(text), delimiter=self._delimiter) if line)
            try:
                found = [next(lines, [])]
            except csv.Error as error:
                remedy = "save short column names; a quote without an end makes one of all that follows"
                raise PredictionFileError(f"its first line: {error}", subject=self.address, remedy=remedy) from None
            with contextlib.suppress(csv.Error):  # a later line that cannot be parsed is for Arrow to name
                found += itertools.islice(lines, _SAMPLED)
            return found

    def _check_text(self) -> None:
        with self._damage(), pa.input_stream(str(self.path), compression="detect") as stream:
            start = stream.read(4096)
        found = next((what for magic, what in _BINARY.items() if start.startswith(magic)), None)
        if found is None and b"\0" in start:
            found = "binary data"
        if found is not None:
            raise PredictionFileError(
                f"{self.address} is not text: it looks like {found}; rename it to what it is, or save it as UTF-8 text"
            )

    def _check_header(self, names: list[str]) -> None:
        repeated = sorted(name for name, count in collections.Counter(names).items() if count > 1)
        if repeated:
            raise PredictionFileError(f"{self.address} has several columns named {repeated[0]!r}; rename all but one")
        if names and re.fullmatch("sep=.?", names[0], re.IGNORECASE):
            raise PredictionFileError(
                f"{self.address}: its first line is not column names but {names[0]!r}, for a spreadsheet; remove the line"
            )
        other = next((mark for mark in _MARKS if len(names) == 1 and mark in names[0]), None)
        if other is not None:
            remedy = ("pass ", Args(delimiter=other))
            raise PredictionFileError(f"{self.address} seems to be separated by {other!r}", remedy=remedy)
        if all(_is_number(name) for name in names) and [*names] != [str(i) for i in range(len(names))]:
            raise PredictionFileError(
                f"{self.address} has no header: its first line is {', '.join(names[:4])}…",
                remedy=("add a line of column names (logit_0,logit_1,…,label) or pass ", Args(header=[...])),
            )

    @contextlib.contextmanager
    def _damage(self) -> Iterator[None]:
        try:
            yield
        except pa.ArrowKeyError:  # the name that we decoded is not the name that Arrow reads
            raise PredictionFileError(
                f"{self.address}: a column name in its first line is not UTF-8 text; save the file as UTF-8"
            ) from None
        except (pa.ArrowInvalid, OSError, UnicodeDecodeError) as error:
            raise self._unread(str(error)) from None

    def _unread(self, arrow: str) -> PredictionFileError:
        """Arrow's message about a line or a cell, in our words and with a remedy."""
        again = "fix the file or save it again"
        if row := _FIELDS.match(arrow):
            return PredictionFileError(
                f"{row['have']} fields where the header has {row['want']}: {row['text'][:60]!r}",
                subject=f"{self.address}, line {row['line']}",
                remedy="fix or remove the line",
            )
        if "straddling" in arrow:
            return self._too_long("a line", self._block)
        if (cell := _CELL.match(arrow)) is None:
            return PredictionFileError(arrow, subject=self.address, remedy=again)
        name = self._names[int(cell["column"])]
        where = f"{self.address}: line {cell['line']}, column {name!r}"
        if (value := cell["value"]) is None:
            return PredictionFileError(cell["what"], subject=where, remedy=again)
        if self._decimal == "," and _is_number(value):
            problem = f"{value!r} has a decimal point, and numbers in lines above have decimal commas"
            return PredictionFileError(problem, subject=where, remedy="use one of them")
        return PredictionFileError(f"{value!r} is not a number", subject=where, remedy=_number_hint(value, name))


def _delimiter_in(line: str) -> str:
    """The comma, unless that leaves the line whole and one other mark alone parts it.

    >>> _delimiter_in("logit_0;logit_1;label"), _delimiter_in("a,b;c"), _delimiter_in("a|b;c"), _delimiter_in('"a;b"')
    (';', ',', ',', ',')
    """

    def parts(mark: str) -> bool:
        with contextlib.suppress(csv.Error):  # a field of more than 131,072 characters: named when the names are read
            return len(next(csv.reader([line], delimiter=mark), [])) > 1
        return False

    found = [] if parts(",") else [mark for mark in _MARKS if parts(mark)]
    return found[0] if len(found) == 1 else ","


def _decimal_mark_in(lines: Iterable[Sequence[str]], delimiter: str) -> str:
    """The comma, where it does not part columns and cells have decimal commas, none of them a decimal point.

    Cells that may all be thousands (1,234) are in doubt, and left for an error to name.

    >>> _decimal_mark_in([["0,5", "1"]], ";"), _decimal_mark_in([["0,5", "0.5"]], ";"), _decimal_mark_in([["1,234"]], "\\t")
    (',', '.', '.')
    """
    cells = [cell.strip() for line in lines for cell in line] if delimiter != "," else []
    commas = [cell for cell in cells if _DECIMAL_COMMA.fullmatch(cell)]
    in_doubt = all(map(_THOUSANDS.fullmatch, commas)) or any(map(_DECIMAL_POINT.fullmatch, cells))
    return "." if in_doubt else ","


def _text_bytes(path: Path) -> int:
    """How much text a gzip file holds, at least or about: as its end states, or as its first part expands.

    It states that of its last member alone, and modulo 4 GB: both make it too small, neither too large.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_EXPANDED)
        file.seek(max(0, size - 4))
        stated = int.from_bytes(file.read(4), "little")
    text, rest = 0, head
    with contextlib.suppress(zlib.error):  # damage is for Arrow to name
        while rest.startswith(_GZIP):
            member = zlib.decompressobj(wbits=31)
            text += len(member.decompress(rest))
            rest = member.unused_data
    return max(stated, text * size // len(head))


class ParquetFile(FieldFile):
    """The columns of a Parquet file: one column per class, or lists of one length."""

    is_table = True

    def __init__(self, path: Path, address: str | None = None, *, filesystem: Any = None) -> None:
        super().__init__(path, address)
        self._filesystem = filesystem
        with self._damage(), self._open() as file:
            self._rows = file.metadata.num_rows
            self.fields = {field.name: self._field(file, field) for field in file.schema_arrow}

    def blocks(self, wanted: Mapping[str, Role], rows: int) -> Iterator[dict[str, Values]]:
        start = 0
        with self._damage(), self._open() as file:
            batches = file.iter_batches(batch_size=min(rows, 1 << 16), columns=list(wanted))
            for table in _rebatched(batches, rows):
                yield {name: self._values(table[name], name, start) for name in wanted}
                start += table.num_rows

    @property
    def num_bytes(self) -> int:
        return super().num_bytes if self._filesystem is None else self._filesystem.size(self.address)

    def _open(self) -> pa.parquet.ParquetFile:
        # A buffered reader holds a window of each column; otherwise it is a row group, which may be all.
        # Checksums, where the file has them, took 0.1 s for 289 MB.
        # From elsewhere, a read of 64 KB would be a request: there it is of 1 MB, for each column.
        remote = self._filesystem is not None
        return pa.parquet.ParquetFile(
            self._filesystem._strip_protocol(self.address) if remote else self.path,
            filesystem=self._filesystem,
            buffer_size=1 << (20 if remote else 16),
            pre_buffer=False,
            page_checksum_verification=True,
        )

    def _field(self, file: pa.parquet.ParquetFile, field: pa.Field) -> Field:
        kind = field.type
        tail: tuple[int, ...] = ()
        if _is_list(kind):
            first = next(file.iter_batches(batch_size=1, columns=[field.name]), None)
            width = (
                kind.list_size if pa.types.is_fixed_size_list(kind) else len(first.column(0)[0] or ()) if first else 0
            )
            tail, kind = (width,), kind.value_type
        return Field(rows=self._rows, tail=tail, type=_type_name(kind), dtype=str(kind))

    def _values(self, column: pa.ChunkedArray, name: str, start: int) -> Values:
        if not _is_list(column.type):
            return _column(column)
        width = self.fields[name].tail[0]
        array = column.combine_chunks()
        lengths = np.asarray(pc.fill_null(pc.list_value_length(array), -1))
        if (lengths != width).any():
            row = int(np.argmax(lengths != width))
            have = "is missing" if lengths[row] < 0 else f"has {lengths[row]} values"
            raise PredictionFileError(
                f"{self.address}: {name!r} {have} in row {start + row}, the first row has {width}; "
                "every row needs one value per class"
            )
        return _column(pa.chunked_array([array.flatten()])).reshape(-1, width)

    @contextlib.contextmanager
    def _damage(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, UnicodeDecodeError) as error:
            reason = str(error).partition("\n")[0]
            raise not_whole(self.address, "Parquet", reason) from None


def _rebatched(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """Tables of exactly `rows` rows (the last may be shorter), however the file was cut into batches."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        while batch.num_rows:
            part = batch.slice(0, rows - count)
            held.append(part)
            count += part.num_rows
            batch = batch.slice(part.num_rows)
            if count == rows:
                yield pa.Table.from_batches(held)
                held, count = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _column(column: pa.ChunkedArray) -> np.ndarray:
    """Numbers as they are (a missing one is NaN), text as a NumPy array of str (a missing one is empty)."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.type in _TEXT:
        return np.asarray(pc.fill_null(column, "").to_pylist(), dtype=np.str_)
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    return column.to_numpy()


def _type_name(kind: pa.DataType) -> FieldType:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "real"
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return "integer"
    return "text" if kind in _TEXT else "object"


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _number_hint(value: str, name: str) -> Words:
    """What to do about a cell that is not a number.

    >>> _number_hint("0,5", "prob_1")
    'it has a decimal comma: save the file with decimal points (0.5)'
    """
    bare = value.strip()
    if mark := next((mark for mark in _MARKS if mark in bare), None):
        return f"if columns are separated by {mark!r}, pass ", Args(delimiter=mark)
    if _DECIMAL_COMMA.fullmatch(bare):
        return f"it has a decimal comma: save the file with decimal points ({bare.replace(',', '.')})"
    if bare.endswith("%") and _is_number(bare[:-1].replace(",", ".")):
        return "it is per cent: save fractions between 0 and 1, without the sign"
    return f"if {name!r} holds no scores, pass ", Args(ignore=[name]), "; else fix the line"


def _are_words(cells: Sequence[str]) -> bool:
    """Whether none of the cells can be meant as a number; missing ones do not count.

    >>> _are_words(["a1.png", ""]), _are_words(["cat", "0.5"]), _are_words(["0,5", "12 %"]), _are_words([""])
    (True, False, False, False)
    """
    filled = [cell.strip() for cell in cells if cell.strip() not in _MISSING]
    return bool(filled) and not any(_is_number(cell) or re.fullmatch(r"[-+−\d.,%\s]+", cell) for cell in filled)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
