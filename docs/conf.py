"""The site, by `make docs`: these pages as they are on GitHub, the API from docstrings, and the demo's page.

What is only for the site happens here, so that the pages need no directives that GitHub would show as text.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import ConfigError

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT / "src"))  # a checkout needs no installation

from calattn.distribution import version as _version  # noqa: E402

project, author, copyright = "calattn", "The calattn developers", "The calattn developers"
version = release = _version().removesuffix("+source")
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"calattn {version}"
html_show_copyright = html_copy_source = html_show_sourcelink = False
myst_heading_anchors = 4  # [text](page.md#a-heading), as on GitHub
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False  # torch writes its own for other tools
autodoc_default_options = {"members": True, "imported-members": True}
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True

API = {
    "calattn": "What most programs need",
    "calattn.heads": "Heads",
    "calattn.models.attach": "Attached models",
    "calattn.lightning": "Lightning",
    "calattn.losses": "Losses",
    "calattn.metrics": "Metrics",
    "calattn.metrics.torchmetrics": "Metrics for torchmetrics",
    "calattn.posthoc": "Calibrators",
    "calattn.comparison": "Comparison over seeds",
    "calattn.readers": "Readers",
    "calattn.files.predictions": "Files of predictions",
    "calattn.backbones": "Backbones",
    "calattn.data": "Data",
    "calattn.data.corruptions": "Corruptions",
    "calattn.report": "Figures and tables",
    "calattn.runs": "Runs",
    "calattn.runs.load": "Trained runs as models",
    "calattn.errors": "Errors",
}
DEMO = Path(os.environ.get("CALATTN_DEMO_PAGE", ROOT / "runs" / "demo" / "page.html"))


def write_api(app: Sphinx) -> None:
    """One page per module, in a folder that git ignores; an unchanged page keeps its time, and is not built again."""
    folder = Path(app.srcdir) / "api"
    folder.mkdir(exist_ok=True)
    pages = {"index.rst": ["API", "===", "", "From the docstrings.", "", ".. toctree::", ""]}
    for module, title in API.items():
        pages["index.rst"].append(f"   {module}")
        heading = f"{title}: ``{module}``"
        option = ["   :exclude-members: comparison, heads, losses, metrics, posthoc"] if module == "calattn" else []
        # `imported-members` follows __all__; a module without one would otherwise show all that it imports.
        has_all = "__all__" in (_source(module)).read_text()
        option += [] if has_all else ["   :no-imported-members:"]
        pages[f"{module}.rst"] = [heading, "=" * len(heading), "", f".. automodule:: {module}", *option]
    for name, lines in pages.items():
        path, text = folder / name, "\n".join(lines) + "\n"
        if not path.is_file() or path.read_text() != text:
            path.write_text(text)


def _source(module: str) -> Path:
    path = ROOT.joinpath("src", *module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def plain_to_rst(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:  # noqa: ARG001
    """Docstrings are plain text: `names` in backticks, formulae indented, doctests. All other signs stand for themselves."""
    found: list[str] = []
    kind = "text"
    for line in lines:
        before = kind
        if not line.strip():
            kind = "text" if kind != "formula" else kind
            found.append("")
            continue
        if line.lstrip().startswith(">>>"):
            kind = "doctest"
        elif kind != "doctest":
            kind = "formula" if line.startswith("    ") else "text"
        if kind == "formula" and before != "formula":
            found += ["::", ""]
        if kind == "text" and before == "formula" and found and found[-1]:
            found.append("")
        found.append(_escaped(line) if kind == "text" else line)
    lines[:] = found


def _escaped(line: str) -> str:
    parts = re.split(r"(`[^`]+`)", line)
    return "".join(f"`{part}`" if part.startswith("`") else re.sub(r"([\\*|_])", r"\\\1", part) for part in parts)


def prepare_page(app: Sphinx, name: str, source: list[str]) -> None:  # noqa: ARG001
    """The index gets its contents from its own tables; files beside docs/ are offered as downloads."""
    text = source[0]
    if name == "index":
        for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
            title, _, body = section.partition("\n")
            pages = list(dict.fromkeys(re.findall(r"\]\(([a-z-]+)\.md\)", body)))
            text += "\n".join(["", "```{toctree}", ":hidden:", f":caption: {title}", "", *pages, "```", ""])
        text += "\n```{toctree}\n:hidden:\n:caption: Python\n\napi/index\n```\n"
    source[0] = re.sub(r"\[([^\]]+)\]\(\.\./([^)#]+)\)", _download, text)


def _download(link: re.Match[str]) -> str:
    if (ROOT / link[2]).is_dir():  # GitHub lists it; here there is nothing to hand out
        return link[1]
    return f"{{download}}`{link[1].replace('`', '')} <../{link[2]}>`"


def embed_demo(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        shutil.copy(DEMO, Path(app.outdir) / "_static" / "demo.html")


def setup(app: Sphinx) -> None:
    if not DEMO.is_file():
        raise ConfigError(f"{DEMO} is not there: run `make demo`, or name a page by CALATTN_DEMO_PAGE")
    app.connect("builder-inited", write_api)
    app.connect("autodoc-process-docstring", plain_to_rst)
    app.connect("source-read", prepare_page)
    app.connect("build-finished", embed_demo)
