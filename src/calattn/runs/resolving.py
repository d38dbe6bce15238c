"""From a recipe, a file, a trained run or a backbone, and `key=value` pairs, to a checked `RunSpec`."""

from __future__ import annotations

import copy
import functools
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from calattn.registry import nearest
from calattn.runs.recipes import RECIPES
from calattn.runs.spec import RunSpec, SpecError, parse_value, parse_yaml, read_yaml

_NAMING = ("name", "backbone")
_MEMBER = re.compile(r"[^\w-]|^(bool|int|float|str)$|^constrained")
# Nothing is trained: what says how is left at what any network takes.
_NO_TRAINING = {
    "train": {"epochs": 0},
    "schedule": {"name": "constant", "warmup_epochs": 0, "options": {}},
    "loss": {"name": "ce", "options": {}},
}


def resolve(source: str | Mapping[str, Any], overrides: Iterable[str] = ()) -> RunSpec:
    """The spec that a recipe's name, a YAML file or values give, after `key=value` overrides.

    >>> resolve("digits", ["train.epochs=3"]).train.epochs
    3
    """
    values = _layers(source, seen=()) if isinstance(source, str) else dict(source)
    # A new name ends the options of the old one, and must not end those that are set beside it: names come first.
    for path, value in sorted(map(_assignment, overrides), key=lambda each: not _names(*each)):
        if path[-1] == "options":  # all of them at once: {} means none
            values = _merged(values, _nested(path, None))
        values = _merged(values, _nested(path, value))
    return checked(values)


def data_values(source: str, name: str | None, *, root: Path | None = None) -> list[str]:
    """What `--data` sets: the images and, of the recipe for anybody's own, what fits their number."""
    if name is None:
        return []
    chosen = [f"data.name={name}"]
    if source == "finetune":
        from calattn import data

        chosen += [f"{key}={value}" for key, value in sizes_for(len(data.load(name, "train", root=root))).items()]
    return chosen


def sizes_for(images: int) -> dict[str, float]:
    """Batch, epochs and held-out share for so many training images: about 1,500 updates, of at least 5 epochs and at most 50.

    >>> sizes_for(300)
    {'train.batch_size': 16, 'train.epochs': 50, 'schedule.warmup_epochs': 5.0, 'data.validation': 0.2}
    >>> sizes_for(100_000)
    {'train.batch_size': 128, 'train.epochs': 5, 'schedule.warmup_epochs': 0.5, 'data.validation': 0.05}
    """
    batch = max(2, min(128, 1 << max(1, (images // 10).bit_length() - 1)))
    epochs = max(5, min(50, round(1500 * batch / max(1, images))))
    share = 0.2 if images < 2_000 else 0.1 if images < 20_000 else 0.05
    return {
        "train.batch_size": batch,
        "train.epochs": epochs,
        "schedule.warmup_epochs": epochs / 10,
        "data.validation": share,
    }


def run_values(path: Path, rule: str) -> dict[str, Any]:
    """The spec of a run that has trained, with its weights to start from, its images and their split."""
    from calattn.runs.folder import RunFolder

    folder = RunFolder.open(path)
    spec = folder.spec()
    file = folder.checkpoints(spec).file(rule)
    values = spec.model_dump(mode="json", exclude={"teach", "name"})
    values["model"] |= {"weights": str(file), "pretrained": False}
    return values | _NO_TRAINING | {"train": values["train"] | _NO_TRAINING["train"]}


def backbone_values(
    name: str, *, weights: Path | None, data: str | None, size: int | None, split_is_known: bool = False
) -> dict[str, Any]:
    """The spec of a backbone with a file of weights, and the images it was trained on.

    `split_is_known`: the caller says which of the training images it was not trained on, by data.validation and split_seed.
    """
    if weights is None or data is None:
        missing = "--weights FILE" if weights is None else "--data DATA"
        raise ValueError(f"{name} is no run folder; to teach a backbone of that name a head, give {missing}")
    if not split_is_known:
        _check_held_out(data)
    images = {"name": data} | ({} if size is None else {"size": size})
    values = {"data": images, "model": {"backbone": name, "weights": str(weights)}} | _NO_TRAINING
    return values | {"train": {"epochs": 0, "batch_size": 1}}


def _check_held_out(data: str) -> None:
    """Of somebody else's weights only the user knows which images they have not seen."""
    from calattn.data import describe
    from calattn.data.sources.datasets import PREFIXES

    if "validation" in describe(data).splits:
        return
    if data.startswith(PREFIXES):
        where = "PATH/val/CLASS" if data.startswith("imagefolder:") else "PATH/validation-00000-of-00001.parquet"
        raise ValueError(
            f"{data} has no validation images beside train and test; put some that the network was not trained on into {where}"
        )
    raise ValueError(
        f"{data} has no validation images of its own, and a network that was trained on all of its training images knows those "
        "that would be held out; if yours was not, say which share it left out: --set data.validation=0.05 (and "
        "data.split_seed), or give the images as imagefolder:PATH with a val folder"
    )


def _names(path: list[str], value: Any) -> bool:
    """Whether an assignment says which loss, optimiser, … it is to be."""
    return path[-1] in _NAMING or (isinstance(value, Mapping) and any(key in value for key in _NAMING))


def checked(values: Mapping[str, Any]) -> RunSpec:
    """A `RunSpec`, or one line that says which key is wrong and what would be right."""
    try:
        return RunSpec.model_validate(dict(values))
    except ValidationError as error:
        raise SpecError("; ".join(_messages(error)[:3])) from None


def _layers(source: str, seen: tuple[str, ...]) -> dict[str, Any]:
    """A spec laid over its `base`, and that over its own."""
    if source in seen:
        raise SpecError(f"base: {' → '.join([*seen, source])} goes round in a circle")
    values, folder = _read(source)
    base = values.pop("base", None)
    if base is None:
        return values
    if not isinstance(base, str):
        raise SpecError(f"{source}: base must be a recipe's name or a path, got {base!r}")
    beside = str(folder / base) if folder is not None and base not in RECIPES else base
    return _merged(_layers(beside, (*seen, source)), values)


def _read(source: str) -> tuple[dict[str, Any], Path | None]:
    if source in RECIPES:
        return copy.deepcopy(_recipe(source)), None
    path = Path(source)
    if path.suffix.lower() not in (".yaml", ".yml") and not path.exists():
        if source.startswith(("imagefolder:", "parquet:")):
            raise SpecError(
                f"{source!r} is data, not a recipe; train a recipe on it: "
                f"calattn train finetune --data {source} (recipes: {', '.join(RECIPES)})"
            )
        beside = [str(file) for file in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        near = nearest(source, [*RECIPES, *beside])
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise SpecError(f"{source!r} is neither a recipe nor a YAML file; {hint}recipes: {', '.join(RECIPES)}")
    if not path.exists():
        raise SpecError(f"{path} does not exist; give a YAML file or a recipe: {', '.join(RECIPES)}")
    if path.is_dir():
        raise SpecError(f"{path} is a folder; give the YAML file, or {path / 'spec.yaml'} for the spec of a run")
    return read_yaml(path), path.parent


@functools.cache  # parsing takes 4 ms, and a grid has hundreds of specs
def _recipe(name: str) -> dict[str, Any]:
    return parse_yaml(RECIPES.text(name), name)


def _assignment(text: str) -> tuple[list[str], Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise SpecError(f"--set {text!r} must be key=value, such as --set optimizer.lr=0.001")
    return key.strip().split("."), parse_value(value, f"--set {key.strip()}") if value else None


def _nested(path: list[str], value: Any) -> dict[str, Any]:
    for name in reversed(path):
        value = {name: value}
    return value


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`, section by section. A new name for a loss, optimiser, … ends the old one's options."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            for naming in _NAMING:
                if naming in value and value[naming] != old.get(naming):
                    old = {k: v for k, v in old.items() if k != "options"}
            merged[key] = _merged(old, value)
        else:
            merged[key] = value
    return merged


def _messages(error: ValidationError) -> list[str]:
    """One sentence a key; where a key takes several types, pydantic complains once for each, and "or" joins them."""
    by_key: dict[tuple[str, ...], list[Any]] = {}
    for detail in error.errors():
        where = [str(part) for part in detail["loc"]]
        if detail["type"] != "extra_forbidden":
            # pydantic names the member of a union after the key: train.compile.bool
            where = list(itertools.takewhile(lambda part: not _MEMBER.search(part), where))
        by_key.setdefault(tuple(where), []).append(detail)
    return [_explained(details, where) for where, details in by_key.items()]


def _explained(details: list[Any], where: tuple[str, ...]) -> str:
    detail, key = details[0], ".".join(where)
    if detail["type"] == "extra_forbidden":
        section = _section(where[:-1])
        known = list(section.model_fields) + (["base"] if section is RunSpec else [])
        near = nearest(where[-1], known)
        elsewhere = [path for path in _all_keys(RunSpec) if path.endswith("." + where[-1])]
        hint = f"did you mean {'.'.join([*where[:-1], near[0]])!r}?" if near else ""
        if not near and elsewhere:
            hint = f"did you mean {elsewhere[0]!r}?"
        elif not near and "options" in section.model_fields:
            hint = f"did you mean {'.'.join([*where[:-1], 'options', where[-1]])!r}? Else known: {', '.join(known)}"
        return f"unknown key {key!r}; {hint or 'known: ' + ', '.join(known)}"
    if detail["type"] == "value_error":
        return str(detail["ctx"]["error"])
    wishes = [_wish(str(each["msg"])) for each in details]
    message = f"must be {' or '.join(wish for wish in wishes if wish)}" if any(wishes) else str(detail["msg"])
    given = repr(detail["input"])
    return f"{key} {message}, got {given if len(given) < 200 else f'{given[:200]}…'}" if key else message


def _wish(pydantic: str) -> str:
    """What pydantic would have in place of a value, in our words; empty where it does not say."""
    _, said, wish = pydantic.partition("Input should be ")
    wish = re.sub(r"dictionary or instance of \w+", "section with keys of its own", wish) if said else ""
    return wish.partition(", unable to")[0]


def _section(path: Sequence[str]) -> type[BaseModel]:
    section: type[BaseModel] = RunSpec
    for name in path:
        annotation = section.model_fields[name].annotation if name in section.model_fields else None
        inner = next(
            (a for a in (annotation, *get_args(annotation)) if isinstance(a, type) and issubclass(a, BaseModel)), None
        )
        if inner is None:
            break
        section = inner
    return section


def _all_keys(section: type[BaseModel], prefix: str = "") -> list[str]:
    keys = []
    for name, field in section.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            keys += _all_keys(inner, f"{prefix}{name}.")
        else:
            keys.append(prefix + name)
    return keys
