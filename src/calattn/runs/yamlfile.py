"""YAML as specs use it: numbers such as 1e-3 are numbers, a key that is given twice is an error, errors are one line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from calattn.errors import InputError
from calattn.files.atomic import PathArg

_EXPONENT = re.compile(r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+")


class SpecError(InputError):
    """A spec that cannot be read or run; the message names the file or key and the remedy."""


def yaml_text(value: dict[str, Any]) -> str:
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False)


def read_yaml(path: PathArg) -> dict[str, Any]:
    """The mapping in a YAML file; errors are one line and name the file, and the line where there is one."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise SpecError(f"{path} is not text; a spec is a YAML file in UTF-8") from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, name: str) -> dict[str, Any]:
    """The mapping in a YAML text that goes by `name` in errors."""
    value = parse_value(text, name)
    if value is None:
        raise SpecError(f"{name} is empty; a spec is a YAML mapping such as 'seed: 1'")
    if not isinstance(value, dict):
        raise SpecError(f"{name} holds a {type(value).__name__}, not a mapping of keys to values such as 'seed: 1'")
    return value


def parse_value(text: str, name: str) -> Any:
    """Any YAML value.

    >>> parse_value("1e-3", "lr")
    0.001
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.reader.ReaderError:
        raise SpecError(f"{name} is not text; a spec is a YAML file in UTF-8") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        raise SpecError(f"{name}{line}: {error.problem or error.context}; fix the YAML there") from None
    except (ValueError, RecursionError) as error:  # such as the date 2024-99-99, or brackets without end
        raise SpecError(f"{name} has a value that YAML cannot read: {error}") from None


class _Loader(yaml.SafeLoader):
    """YAML 1.1 reads 1e-3 as text and lets a second `lr:` win in silence; a spec must not be misread so."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen and isinstance(key.value, str):
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
            if isinstance(key.value, str):
                seen.add(key.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes the texts that `_Loader` would read as numbers."""


for _side in (_Loader, _Dumper):
    _side.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))
