"""Prose is no interface: no code of ours looks into the words of an error or a warning, except into those of others."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import calattn

ROOT = Path(calattn.__file__).parent

# Function → whose words it reads. Torch, Arrow and their like have no fields, and one class for many things.
FOREIGN = {
    "cli/errors.py:_lost_peer": "gloo and NCCL",
    "cli/errors.py:_out_of_memory": "torch",
    "cli/errors.py:_usage": "click and pydantic",
    "data/decoding.py:_reason": "Pillow",
    "data/sources/parquet.py:_opened": "Arrow",
    "data/loading.py:_worker_died": "torch's DataLoader",
    "data/loading.py:batches": "torch's DataLoader",
    "losses/loss.py:_out_of_memory": "torch",
    "readers/tables.py:_damage": "Arrow",
    "readers/arrays.py:_torch_load": "torch",
    "runs/resolving.py:_messages": "pydantic",
}
SEARCHES = {"search", "match", "fullmatch", "sub", "subn", "findall", "finditer"}
PARTS = {
    "partition",
    "rpartition",
    "split",
    "rsplit",
    "splitlines",
    "removeprefix",
    "removesuffix",
    "replace",
    "translate",
}
PLACES = {"startswith", "endswith", "find", "rfind", "index", "rindex", "count", "strip", "lstrip", "rstrip"}
READS = SEARCHES | PARTS | PLACES
MESSAGES = {"error", "warning", "message", "reason", "told", "said"}  # what arguments with a message are called
Function = ast.FunctionDef | ast.AsyncFunctionDef


def words_read(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Each function that looks into a message, and the expression that does."""
    for function in ast.walk(tree):
        if isinstance(function, Function):
            texts = _texts(function)
            yield from ((function.name, node) for node in ast.walk(function) if _looks_into(node, texts))


def _texts(function: Function) -> set[str]:
    """Names that stand for an error, or for text made of one."""
    given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    texts = {each.arg for each in given if _is_error(each.annotation) or each.arg in MESSAGES}
    texts |= {node.name for node in ast.walk(function) if isinstance(node, ast.ExceptHandler) and node.name}
    while True:  # what is made of what is made of an error
        made = set(texts)
        for node in ast.walk(function):
            if isinstance(node, ast.Assign | ast.NamedExpr | ast.comprehension | ast.For):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                value = node.iter if isinstance(node, ast.comprehension | ast.For) else node.value
                if _is_text(value, texts):
                    made |= {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
        if made == texts:
            return texts
        texts = made


def _is_error(annotation: ast.expr | None) -> bool:
    words = ("Error", "Exception", "Warning")
    return annotation is not None and any(word in ast.unparse(annotation) for word in words)


def _is_text(node: ast.expr, texts: set[str]) -> bool:
    """Whether an expression is a message: the error, text made of it, or one of its fields in words."""
    if isinstance(node, ast.Name):
        return node.id in texts
    if isinstance(node, ast.Attribute):
        return node.attr == "message" or (node.attr in ("args", "problem", "remedy") and _is_text(node.value, texts))
    if isinstance(node, ast.Subscript | ast.FormattedValue):
        return _is_text(node.value, texts)
    if isinstance(node, ast.JoinedStr | ast.BoolOp):
        return any(_is_text(value, texts) for value in node.values)
    if isinstance(node, ast.BinOp):
        return _is_text(node.left, texts) or _is_text(node.right, texts)
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute):
        if _is_text(node.func.value, texts):
            return True
        made = node.func.attr == "join"
    else:
        made = ast.unparse(node.func) in ("str", "repr", "words_of", "message_of", "_one_line")
    return made and any(_is_text(value, texts) for value in node.args)


def _looks_into(node: ast.AST, texts: set[str]) -> bool:
    if isinstance(node, ast.Compare):
        sought = any(isinstance(each, ast.In | ast.NotIn) for each in node.ops)
        return sought and any(_is_text(each, texts) for each in node.comparators)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in READS:
        return False
    if node.func.attr in SEARCHES and any(_is_text(value, texts) for value in node.args):
        return True
    # str(error).split() and .strip() without an argument are about blanks and line breaks alone.
    return bool(node.args or node.func.attr == "splitlines") and _is_text(node.func.value, texts)


def test_only_the_words_of_others_are_read():
    found = {
        f"{path.relative_to(ROOT).as_posix()}:{name}": f"line {node.lineno}: {ast.unparse(node)}"
        for path in sorted(ROOT.rglob("*.py"))
        for name, node in words_read(ast.parse(path.read_text(encoding="utf-8")))
    }
    ours = {place: code for place, code in found.items() if place not in FOREIGN}
    assert not ours, "these read a message: give the error a field or a class of its own, see calattn/errors.py"
    assert not FOREIGN.keys() - found.keys(), "these read none any more"


def reading(*lines: str) -> list[str]:
    """The functions that are found in one that catches an error and does this with it."""
    body = "\n        ".join(lines)
    tree = ast.parse(f"def f():\n    try:\n        pass\n    except ValueError as error:\n        {body}\n")
    return [name for name, _ in words_read(tree)]


@pytest.mark.parametrize(
    "line",
    [
        '"nan" in str(error)',
        '"nan" not in f"{error}"',
        'str(error).partition("; did you mean")[0]',
        "re.search('nan', str(error))",
        "_BAD.sub('', text)",
        "error.args[0].startswith('nan')",
        "error.problem.endswith('?')",
        "' '.join(str(error).split()).replace('a', 'b')",
        "(text or '').removeprefix('nan')",
        "tuple(each.replace('a', 'b') for each in error.args)",
    ],
)
def test_reading_is_found(line):
    assert set(reading("text = str(error)", f"again = {line}", "raise KeyError(again) from None")) == {"f"}


def test_saying_is_not_reading():
    assert not reading(
        'text = " ".join(str(error).split())', 'found.append(f"{error}: {text}")', "raise KeyError(text)"
    )
