"""A grid: a YAML file that says what all runs share and what varies, and the runs that it names."""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from calattn.errors import InputError
from calattn.registry import nearest
from calattn.runs.recipes import RECIPES
from calattn.runs.resolving import resolve
from calattn.runs.spec import RunSpec, first_problem, read_yaml

_LONGEST = 120  # characters of a name: it becomes a folder's
_UNSAFE = re.compile(r"[^\w.+-]+")

Settings = dict[str, Any]


class GridError(InputError):
    """A grid that names no runs, or not the ones that somebody meant; the message names the file, the key and the remedy."""


class _Grid(BaseModel):
    """The file, see `read_grid`."""

    model_config = ConfigDict(extra="forbid")

    base: str
    set: dict[str, Any] | list[str] = {}
    vary: list[dict[str, Any]] = []
    runs: dict[str, dict[str, Any]] = {}
    exclude: list[Annotated[dict[str, Any], Field(min_length=1)]] = []

    @field_validator("vary", "exclude", mode="before")
    @classmethod
    def _one(cls, value: Any) -> Any:
        return [value] if isinstance(value, dict) else value


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
    try:
        grid = _Grid.model_validate(read_yaml(path))
        groups = [_group(each) for each in [*grid.vary, *([{"run": grid.runs}] if grid.runs else [])]]
        points = [each for group in groups for each in combinations(group)]
        for partial in grid.exclude:
            points = _without(points, partial)
        base = grid.base if grid.base in RECIPES else str(path.parent / grid.base)
        shared = grid.set if isinstance(grid.set, list) else _changes(grid.set)
        runs = [
            Run(
                name=name,
                settings={key: _shown(value) for key, value in point.items()},
                base=base,
                changes=(*shared, *_changes(point), *changes),
            )
            for name, point in zip(_names(points), points, strict=True)
        ]
        _check_names([run.name for run in runs])
    except ValidationError as error:
        remedy = f"a grid has {', '.join(_Grid.model_fields)}"
        raise GridError(first_problem(error), subject=str(path), remedy=remedy) from None
    except GridError as error:
        raise GridError.of(error, subject=str(path)) from None
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
    sets: Mapping[str, Any]


def _group(group: Mapping[str, Any]) -> Settings:
    """A group whose choices are read; a key of the spec keeps its list of values."""
    found: Settings = {}
    for key, values in group.items():
        if key.partition(".")[0] in RunSpec.model_fields:
            found[key] = values
        elif isinstance(values, Mapping) and values and all(isinstance(each, Mapping) for each in values.values()):
            found[key] = [_Choice(str(name), sets) for name, sets in values.items()]
        else:
            near = nearest(key, list(RunSpec.model_fields))
            hint = f"did you mean {near[0]!r}? " if near else ""
            remedy = f"{hint}choices are written {key}: {{a: {{seed: 1}}, b: {{seed: 2}}}}"
            raise GridError(f"{key!r} is no key of a spec, nor does it name choices", remedy=remedy)
    return found


def _changes(settings: Mapping[str, Any]) -> list[str]:
    """`key=value` as `resolve` takes it."""
    each = [value.sets if isinstance(value, _Choice) else {key: value} for key, value in settings.items()]
    return [f"{key}={json.dumps(value, ensure_ascii=False)}" for sets in each for key, value in sets.items()]


def _names(points: Sequence[Settings]) -> list[str]:
    """What varies, joined: choices and words by their name, numbers after their key, all else by its place."""
    keys = dict.fromkeys(key for point in points for key in point)
    seen = {key: list(dict.fromkeys(repr(point.get(key)) for point in points)) for key in keys}

    def part(key: str, value: Any) -> str:
        last = key.rpartition(".")[2]
        if isinstance(value, _Choice | str):
            return _safe(str(_shown(value)))
        if isinstance(value, int | float):
            return f"{last}{value:g}" if isinstance(value, float) else f"{last}{value}"
        return f"no-{last}" if value is None else f"{last}{seen[key].index(repr(value)) + 1}"

    def name(point: Settings) -> str:
        varied = {key: value for key, value in point.items() if len(seen[key]) > 1 or isinstance(value, _Choice)}
        return "-".join(part(key, value) for key, value in varied.items()) or "run"

    return [name(point) for point in points]


def _safe(text: str) -> str:
    """A name that is a folder of its own wherever it is put."""
    return _UNSAFE.sub("_", text).lstrip(".-") or "run"


def _shown(value: Any) -> Any:
    return value.name if isinstance(value, _Choice) else value


def _without(points: list[Settings], partial: Mapping[str, Any]) -> list[Settings]:
    """Without those that have all of these values; an exclusion that matches nothing was meant to match something."""
    wanted = [(key, values if isinstance(values, list) else [values]) for key, values in partial.items()]
    kept = [each for each in points if not all(key in each and _shown(each[key]) in values for key, values in wanted)]
    if len(kept) == len(points):
        raise GridError(f"exclude: {dict(partial)} matches no run", remedy="remove or correct it")
    return kept


def _check_names(names: Sequence[str]) -> None:
    if not names:
        raise GridError("names no runs", remedy="say what varies: vary: {seed: [0, 1]}")
    alike = [name.lower() for name in names]
    for place, name in enumerate(names):
        if alike.index(name.lower()) < place:
            raise GridError(f"two runs would have the name {name}", remedy="give choices names of their own")
        if len(name) > _LONGEST:
            raise GridError(f"the name {name} is too long for a folder", remedy="give choices names of their own")
