"""Names of classes, files and runs that are markup, commands, formulas or control characters stay text in everything written."""

from __future__ import annotations

import csv
import html.parser
import io
import json
import random
import re

import pytest
import torch
from markdown_it import MarkdownIt

import calattn
from calattn import report
from calattn.cli.console import json_text, results_to
from calattn.files.text import visible
from calattn.report import Cell, Table
from calattn.report.page import Exhibit, build_document, page_html
from calattn.report.page.leaderboard import Standing, leaderboard_document
from calattn.report.page.writing import leaderboard_html
from calattn.report.table import latex_text
from tests.cli_runner import invoke, predictions, write_npz
from tests.faults.tally import count, times

PARTS = (
    *("<script>alert(1)</script>", "</script>", "<!--", "-->", "<img src=x onerror=alert(1)>", "&lt;b&gt;", "]]>"),
    *("{{TITLE}}", "/*JS*/", "javascript:alert(1)", "\u2028", "\u2029", "\\u003c", '"', "'", "`", "${x}", "\\", "\\\\"),
    *("\\n", "=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "=cmd|' /C calc'!A0", ",", ";", '""', "\r\n", "\n"),
    *("\\input{/etc/passwd}", "\\write18{ls}", "$x_1^2$", "$", "%", "#", "&", "_", "^", "~", "{", "}", "bold::"),
    *("::bold", "\\\\[9cm]", "\x1b[31m", "\x1b]0;title\x07", "\x1b[2J", "\x9b31m", "\x07", "\x08\x08", "\r", "\x00"),
    *("\x7f", "\ud800", "\udcff", "\u202e", "\u2066", "\u2069", "\u200f", "\ufeff", "[red]", "[/]", "[link=x]y[/link]"),
    *(":bug:", "[bold", "|", "**", "__", "# ", "- ", "![x](y)", "[x](javascript:y)", "<b>", "~~", "cat", "狗", "é"),
    *("_nolegend_", " "),
)
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def made(number: int, seed: int = 0) -> list[str]:
    """Distinct hostile names: every part alone, then several of them in a row."""
    drawn, found = random.Random(seed), dict.fromkeys(PARTS)
    while len(found) < number:
        found["".join(drawn.choices(PARTS, k=drawn.randint(2, 4)))] = None
    return list(found)[: max(number, len(PARTS))]


NAMES = made(times(120, 600))


@pytest.fixture(scope="module", autouse=True)
def _tally():
    yield
    count("hostile name", "every writer", injected=len(NAMES))


def packed(text: str) -> str:
    return "".join(text.split())


def table_of(name: str) -> Table:
    cell = Cell("1.20", "[1.00, 1.40]", "best")
    return Table(
        header=["", name], rows=[[name, cell]], caption=f"of {name}", records=[{"title": name, name: 0.5}], label=name
    )


class Text(html.parser.HTMLParser):
    """The text of a page, by its element, and what could act."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: dict[str, list[str]] = {}
        self.acting: list[str] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list) -> None:
        self.open.append(tag)
        self.acting += [name for name, _ in attributes if name.startswith("on")]

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self.open[-1] if self.open else "", []).append(data)


def test_pages():
    p = predictions()
    titles = [*NAMES[: p.num_classes - 1], "cat"]
    for start in range(0, len(NAMES), 40):
        some = NAMES[start : start + 40]
        rows = [Standing(title=name, facts={"head": name, name: 1}, reason=name) for name in some]
        document = leaderboard_document(rows, title=some[0], split=some[-1], checkpoint="last")
        found = Text(leaderboard_html(document))
        assert len(found.texts["script"]) == 2
        assert found.acting == []
        inside = json.loads(found.texts["script"][0])
        assert [row["title"] for row in inside["rows"]] == [visible(name) for name in some]
        assert not FORBIDDEN.search("".join(found.texts["script"]))
        assert found.texts["title"] == [visible(some[0])] if some[0].strip("\n") else True
    p = p.replace(class_names=tuple(titles))
    shown = Exhibit(
        title=NAMES[-1],
        predictions=p,
        evaluation=calattn.evaluate(p, num_bootstrap=0),
        provenance=[(NAMES[-1], NAMES[-2])],
        spec=NAMES[-3],
    )
    found = Text(page_html(build_document([shown], warnings=[NAMES[-4]])))
    assert len(found.texts["script"]) == 2
    assert json.loads(found.texts["script"][0])["subjects"][0]["class_names"] == [visible(name) for name in titles]


def test_markdown():
    parser = MarkdownIt("commonmark", {"html": True}).enable("table").enable("strikethrough")
    for name in NAMES:
        blocks = parser.parse(table_of(name).markdown())
        kinds = {token.type for token in blocks}
        assert "html_block" not in kinds
        lines = [token for token in blocks if token.type == "inline"]
        assert len(lines) == 5, name  # two heads, two cells, the caption
        texts = [
            ("".join(child.content for child in token.children), {child.type for child in token.children})
            for token in lines
        ]
        wanted = ["", name, name, "1.20 [1.00, 1.40]", f"of {name}."]
        assert [packed(text) for text, _ in texts] == [packed(visible(text)) for text in wanted], name
        assert all(kinds <= {"text", "strong_open", "strong_close", "text_special"} for _, kinds in texts), name


# What `latex_text` may write beside plain characters.
_COMMANDS = re.compile(
    r"\\textbackslash\{\}|\\textasciitilde\{\}|\\textasciicircum\{\}|\\[{}$&#%_]|\$[<>|]\$|\{\[\}|\{\]\}"
    r"|\$\\(?:lambda|alpha|pm|ge|le|to|times|cdot|infty)\$|\$-\$|\$\\\|\$|\\dots\{\}|\\l\{\}|\\['`\"^~]\{\w\}|\\c \{\w\}"
)


def test_latex():
    for name in NAMES:
        written = latex_text(name)
        assert written.isascii()
        assert not re.search(r"[\\{}$&#%_^~\x00-\x1f]", _COMMANDS.sub("", written)), name
        table = table_of(name).latex(notes=[name])
        assert table.count("\\begin{") == table.count("\\end{") == 2, name
        assert table.count("\\textbf{") == 1, name
        assert re.search(r"\\label\{tab:[A-Za-z0-9:.-]*\}", table), name


def acts(cell: str) -> bool:
    """Whether a spreadsheet computes a cell; a number is what it is."""
    return cell.startswith(("=", "+", "-", "@", "\t", "\r")) and not re.fullmatch(
        r"[+-](\d+\.?\d*|\.\d+)(e[+-]?\d+)?", cell
    )


def test_csv():
    for name in NAMES:
        head, row = csv.reader(io.StringIO(table_of(name).csv(), newline=""))
        for cell in (head[1], row[0]):
            assert not acts(cell)
            assert not FORBIDDEN.search(cell)
            assert cell.removeprefix("'") == visible(name).removeprefix("'")
        assert row[1] == "0.5"


def test_the_terminal(capsys):
    from calattn.cli.console import note, print_table

    for name in NAMES:
        print_table(table_of(name))
        results_to().print(name, markup=False, soft_wrap=True)
        note(name)
        written = capsys.readouterr()
        assert not FORBIDDEN.search(written.out + written.err), name
        assert packed(visible(name)) in packed(written.err), name
        text = json_text({name: name})
        assert not FORBIDDEN.search(text)
        assert json.loads(text) == {name: name}


def test_figures(tmp_path):
    p = predictions()
    for place, name in enumerate(NAMES[:: max(1, len(NAMES) // times(3, 60))]):
        p = p.replace(class_names=(name, *map(str, range(1, p.num_classes))))
        drawn = (
            report.reliability_diagram(p, title=name, target=0),
            report.risk_coverage_curve({name: p, f"{name}2": p}),
        )
        for figure in drawn:
            report.save_figure(figure, tmp_path / f"{place}.svg")
            figure.canvas.draw()
        axes = drawn[0].axes[0]
        assert axes.get_title() == visible(name)
        legend = [text.get_text() for text in drawn[1].axes[0].get_legend().get_texts()]
        assert [visible(name) in each for each in legend] == [True, True]


def test_commands(capsys, tmp_path, monkeypatch):
    """Files of such names, of such classes, through every command and format that takes them."""
    fits = [
        name
        for name in NAMES
        if not {"/", "\0", "\ud800"} & set(name) and len(name.encode("utf-8", "surrogateescape")) < 80
    ]
    p = predictions()
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(fits[:: max(1, len(fits) // times(1, 15))]):
        folder = tmp_path / str(number)
        folder.mkdir()
        classes = tuple(f"{name}{k}".replace("\0", "") for k in range(p.num_classes))
        classes = tuple(each.encode("utf-8", "backslashreplace").decode() for each in classes)
        a, b = (write_npz(folder / f"{part}{name}.npz", p.replace(class_names=classes)) for part in "ab")
        few = ("--bootstrap", 0)
        written = folder / ("t.csv", "t.md", "t.tex", "t.json")[number % 4]
        found = invoke(capsys, "evaluate", a, b, *few, "-m", "ece", "--write", written, "--html", folder / "p.html")
        assert found.code == 0, (name, found.err)
        assert not FORBIDDEN.search(found.out + found.err)
        assert not FORBIDDEN.search(written.read_text(encoding="utf-8"))
        found = invoke(
            capsys, "calibrate", a, *few, "--write", folder / "w.csv", "--sets", 0.9, "--html", folder / "c.html"
        )
        assert found.code == 0, (name, found.err)
        assert not FORBIDDEN.search(found.out + found.err)
        labels = [row[0] for row in csv.reader((folder / "w.csv").open(newline=""))]
        assert not any(each.startswith(("=", "+", "-", "@")) for each in labels)
        found = invoke(capsys, "report", a, b, *few, "--out", folder / "r")
        assert found.code == 0, (name, found.err)
        assert not FORBIDDEN.search(found.out + found.err)
        for page in folder.rglob("*.html"):
            assert len(Text(page.read_text(encoding="utf-8")).texts["script"]) == 2
        missing = invoke(capsys, "evaluate", folder / f"{name}missing.npz")
        assert missing.code != 0
        assert not FORBIDDEN.search(missing.out + missing.err)


def test_new_images(tmp_path):
    from calattn.runs.newimages import ImagePredictions

    names = NAMES[: times(60, 600)]
    found = ImagePredictions(
        names=tuple(names),
        probs=torch.eye(3)[torch.arange(len(names)) % 3],
        temperature=torch.ones(len(names)),
        class_names=("=1", "-x", "cat"),
    )
    found.write(tmp_path / "t.csv", top=2)
    with (tmp_path / "t.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert len(rows) == len(names) + 1
    for row, name in zip(rows[1:], names, strict=True):
        assert row[0].removeprefix("'") == visible(name).removeprefix("'")
        assert not any(map(acts, row))
