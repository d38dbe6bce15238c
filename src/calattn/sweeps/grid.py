"""A grid: a YAML file that says what all runs share and what varies, and the runs that it names."""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from calattn.errors import InputError
from calattn.registry import nearest
from calattn.runs.recipes import RECIPES
from calattn.runs.resolving import resolve
from calattn.runs.spec import RunSpec, read_yaml

_KEYS = ("base", "set", "vary", "runs", "exclude")
_LONGEST = 120  # characters of a name: it becomes a folder's
_UNSAFE = re.compile(r"[^\w.+-]+")

Settings = dict[str, Any]


class GridError(InputError):
    """A grid that names no runs, or not the ones that somebody meant; the message names the file, the key and the remedy."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a grid. `settings`: what it has of all that varies; `changes`: `key=value` over the base, in order."""

    name: str
    settings: Mapping[str, Any]
    base: str
    changes: tuple[str, ...]

    def spec(self) -> RunSpec:
        try:
            return resolve(self.base, [f"name={json.dumps(self.name)}", *self.changes])
        except ValueError as error:
            raise GridError(f"the run {self.name}: {error}") from None


def read_grid(path: Path, changes: Sequence[str] = ()) -> list[Run]:
    """The runs of a grid file, in its order; `changes` are laid over all of them.

    base: digits                      a recipe, or a spec beside this file
    set: {train.epochs: 5}            of every run
    vary:                             every combination, the first key slowest; a list of such groups is all of them
      method:                         a name of your own: each choice sets several keys
        plain: {model.head: none, loss.name: ce}
        ours: {model.head: calattn, loss.name: ce_brier}
      seed: [0, 1, 2]
    runs: {long: {train.epochs: 50}}  more, one by one
    exclude: [{method: plain, seed: 2}]
    """
    found = read_yaml(path)
    _check_keys(path, found)
    base = str(found.get("base", ""))
    if base not in RECIPES:
        base = str(path.parent / base)
    shared = _changes(path, "set", found.get("set", {}))
    groups = [_group(path, each) for each in _listed(found.get("vary"))]
    points = [each for group in groups for each in combinations(group)]
    for partial in _listed(found.get("exclude")):
        points = _without(path, points, partial)
    single = found.get("runs", {})
    if not isinstance(single, Mapping) or not all(isinstance(each, Mapping) for each in single.values()):
        raise GridError(
            "must give each run a name and what it sets, such as {long: {train.epochs: 50}}", subject=f"{path}: runs"
        )
    runs = [
        Run(name=name, settings={key: _shown(value) for key, value in point.items()}, base=base, changes=tuple(made))
        for name, point in zip(_names(points), points, strict=True)
        for made in [[*shared, *_settings(path, point), *changes]]
    ]
    runs += [
        Run(
            name=_safe(str(name)),
            settings=values,
            base=base,
            changes=(*shared, *_changes(path, str(name), values), *changes),
        )
        for name, values in single.items()
    ]
    _check_names(path, runs)
    return runs


def chosen(runs: Sequence[Run], pattern: str | None) -> list[Run]:
    """Those whose names match, such as "ours-*"."""
    found = [each for each in runs if pattern is None or fnmatch.fnmatchcase(each.name, pattern)]
    if not found:
        raise GridError(f"no run matches --only {pattern!r}; --plan lists them all")
    return found


def combinations(group: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every combination of what a group lists, the first key slowest.

    >>> combinations({"dataset": "mnist", "model": ["vit", "deit"]})
    [{'dataset': 'mnist', 'model': 'vit'}, {'dataset': 'mnist', 'model': 'deit'}]
    """
    lists = [each if isinstance(each, list) else [each] for each in group.values()]
    return [dict(zip(group, values, strict=True)) for values in itertools.product(*lists)]


@dataclasses.dataclass(frozen=True)
class _Choice:
    """One of several that a name of the user's own stands for: what it sets."""

    name: str
    sets: tuple[str, ...]


def _group(path: Path, group: Any) -> Settings:
    """A group whose choices are read; a key of the spec keeps its list of values."""
    if not isinstance(group, Mapping):
        raise GridError(f"must list keys and their values, got {group!r}", subject=f"{path}: vary")
    found: Settings = {}
    for key, values in group.items():
        if str(key).partition(".")[0] in RunSpec.model_fields:
            found[key] = values
        elif isinstance(values, Mapping) and values and all(isinstance(each, Mapping) for each in values.values()):
            found[key] = [_Choice(str(name), _changes(path, f"{key}.{name}", sets)) for name, sets in values.items()]
        else:
            raise GridError(
                f"{key!r} is no key of a spec, nor does it name choices",
                subject=f"{path}: vary",
                remedy=f"{_near(str(key), list(RunSpec.model_fields))}choices look so: {key}: {{a: {{seed: 1}}, b: {{seed: 2}}}}",
            )
    return found


def _settings(path: Path, point: Settings) -> Iterator[str]:
    for key, value in point.items():
        yield from value.sets if isinstance(value, _Choice) else _changes(path, key, {key: value})


def _changes(path: Path, where: str, values: Any) -> tuple[str, ...]:
    """`key=value` as `resolve` takes it, from a mapping or a list of such texts."""
    if isinstance(values, list) and all(isinstance(each, str) for each in values):
        return tuple(values)
    if not isinstance(values, Mapping):
        raise GridError(f"must be keys of a spec with their values, got {values!r}", subject=f"{path}: {where}")
    return tuple(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in values.items())


def _names(points: Sequence[Settings]) -> list[str]:
    """What varies, joined: choices and words by their name, numbers after their key, all else by its place."""
    keys = dict.fromkeys(key for point in points for key in point)
    seen = {key: list({repr(p.get(key)): p.get(key) for p in points}.values()) for key in keys}
    varied = [key for key in keys if len(seen[key]) > 1]
    return ["-".join(_part(key, point[key], seen[key]) for key in varied if key in point) or "run" for point in points]


def _part(key: str, value: Any, values: list[Any]) -> str:
    last = key.rpartition(".")[2]
    if isinstance(value, _Choice):
        return _safe(value.name)
    if isinstance(value, str):
        return _safe(value)
    if isinstance(value, bool | int | float):
        return f"{last}{value:g}" if isinstance(value, float) else f"{last}{value}"
    return f"no-{last}" if value is None else f"{last}{[repr(each) for each in values].index(repr(value)) + 1}"


def _safe(text: str) -> str:
    """A name that is a folder of its own wherever it is put."""
    return _UNSAFE.sub("_", text).lstrip(".-") or "run"


def _shown(value: Any) -> Any:
    return value.name if isinstance(value, _Choice) else value


def _without(path: Path, points: list[Settings], partial: Any) -> list[Settings]:
    """Without those that have all of these values; an exclusion that matches nothing was meant to match something."""
    if not isinstance(partial, Mapping) or not partial:
        raise GridError(f"must be values of what varies, got {partial!r}", subject=f"{path}: exclude")
    wanted = [(key, _listed(values)) for key, values in partial.items()]
    kept = [each for each in points if not all(key in each and _shown(each[key]) in values for key, values in wanted)]
    if len(kept) == len(points):
        raise GridError(f"{dict(partial)} matches no run", subject=f"{path}: exclude", remedy="remove or correct it")
    return kept


def _listed(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]


def _check_keys(path: Path, found: Mapping[str, Any]) -> None:
    for key in found:
        if key not in _KEYS:
            hint = _near(str(key), _KEYS)
            raise GridError(
                f"{key!r} is no part of a grid", subject=str(path), remedy=f"{hint}known: {', '.join(_KEYS)}"
            )
    if "base" not in found:
        raise GridError("has no base", subject=str(path), remedy="name a recipe, or a spec beside it: base: digits")


def _check_names(path: Path, runs: Sequence[Run]) -> None:
    if not runs:
        raise GridError("names no runs", subject=str(path), remedy="say what varies: vary: {seed: [0, 1]}")
    seen: set[str] = set()
    for run in runs:
        if run.name.lower() in seen:
            remedy = "give choices names of their own, or remove one"
            raise GridError(f"two runs would have the name {run.name}", subject=str(path), remedy=remedy)
        if len(run.name) > _LONGEST:
            raise GridError(
                f"the name {run.name} is too long for a folder", subject=str(path), remedy="use named choices"
            )
        seen.add(run.name.lower())


def _near(name: str, known: Sequence[str]) -> str:
    found = nearest(name, list(known))
    return f"did you mean {found[0]!r}? " if found else ""
