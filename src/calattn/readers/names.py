"""Names of fields: which of them are logits or probabilities, labels and the rest; never a guess."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterable, Sequence
from typing import Literal

from calattn.readers.source import Source
from calattn.store import PredictionFileError

Kind = Literal["logits", "probs"]

NAMES: dict[Kind, frozenset[str]] = {
    "logits": frozenset({"logits", "logit", "y_logits", "test_logits", "val_logits"}),
    "probs": frozenset(
        {"probs", "prob", "probabilities", "probability", "proba", "softmax", "p"}
        | {"y_prob", "y_probs", "y_proba", "test_probs", "val_probs"}
    ),
}
# Names that say "this came out of the model" and not what it is: `kind` has to say it.
GENERIC = frozenset(
    {
        "predictions",
        "prediction",
        "preds",
        "pred",
        "y_pred",
        "outputs",
        "output",
        "scores",
        "score",
        "y_score",
    }
    | {"arr_0"}
)
LABELS = frozenset({"labels", "label", "y", "y_true", "targets", "target", "y_test", "test_labels", "val_labels"})
SCALE = frozenset({"scale", "temperature"})
FEATURES = frozenset({"features", "embeddings"})
INDICES = frozenset({"indices", "index", "sample_index", "ids", "id"})
CLASS_NAMES = frozenset({"class_names", "classes"})

# logit_0, prob.cat, p_1, logit0: a prefix that says what it is, then the class.
_CLASS_COLUMN = re.compile(
    r"(?P<prefix>logits?|probs?|proba|probability|probabilities|softmax|p)(?:[_.:](?P<name>.+)|(?P<digits>\d+))",
    re.IGNORECASE,
)


class Chooser:
    """Recognises the fields of one source by name, or takes those that the caller names."""

    def __init__(self, source: Source, ignore: Sequence[str]) -> None:
        self.source = source
        self.names = [name for name in source.fields if name not in set(ignore)]
        for name in ignore:
            self._known(name, "ignore")

    def fail(self, message: str) -> PredictionFileError:
        shown = ", ".join(f"{name} ({self.source.fields[name]})" for name in self.names[:12])
        more = f" and {len(self.names) - 12} more" if len(self.names) > 12 else ""
        return PredictionFileError(f"{self.source.path}: {message}. It has: {shown or 'nothing'}{more}")

    def values(self, kind: Kind | None, columns: str | Sequence[str] | None) -> tuple[Kind, tuple[str, ...]]:
        """The kind and the fields of the predictions themselves."""
        if columns is not None:
            return self._given(kind, columns)
        named = {each: self._groups(each) for each in NAMES}
        present: list[Kind] = [each for each in named if any(self._wide(group) for group in named[each])]
        if kind is None:
            if len(present) > 1:
                raise self.fail(
                    "there are both logits and probabilities, and they need not agree; "
                    'pass kind="logits" or kind="probs"'
                )
            if not present:
                raise self.fail(self._why_none(named))
            kind = present[0]
        groups = named[kind] or self._generic()
        wide = [group for group in groups if self._wide(group)]
        groups = wide or groups
        if not groups:
            raise self.fail(f'there is nothing named like {kind}; pass columns="…" with its name')
        if len(groups) > 1:
            options = " or ".join(repr(group[0]) if len(group) == 1 else f"{group[0]}…" for group in groups)
            raise self.fail(f"several fields could be the {kind}: {options}; pass columns=… to choose")
        return kind, groups[0]

    def one_of(self, known: Iterable[str], what: str) -> str | None:
        """The one field whose name is among `known`, or None."""
        known = set(known)
        found = [name for name in self.names if name.lower() in known]
        if len(found) > 1:
            raise self.fail(
                f"{' and '.join(map(repr, found))} could both be the {what}; pass ignore=[…] for the others"
            )
        return found[0] if found else None

    def labels(self, labels: str | None) -> str:
        if labels is not None:
            return self._known(labels, "labels")
        found = [name for name in self.names if name.lower() in LABELS]
        if len(found) > 1:
            raise self.fail(f'{" and ".join(map(repr, found))} could both be the labels; pass labels="{found[0]}"')
        if not found:
            raise self.fail('there is nothing named like labels; pass labels="…" (a name, an array or a Path)')
        return found[0]

    def _known(self, name: str, argument: str) -> str:
        if name not in self.source.fields:
            near = difflib.get_close_matches(name, list(self.source.fields), n=1)
            raise self.fail(f"{argument} names {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        return name

    def _given(self, kind: Kind | None, columns: str | Sequence[str]) -> tuple[Kind, tuple[str, ...]]:
        if isinstance(columns, str) and columns not in self.source.fields and "*" in columns:
            chosen = tuple(name for name in self.names if fnmatch.fnmatchcase(name, columns))
            if not chosen:
                raise self.fail(f"no column matches columns={columns!r}")
            chosen = numbered(chosen, columns.partition("*")[0]) or chosen
        else:
            chosen = (columns,) if isinstance(columns, str) else tuple(columns)
            for name in chosen:
                self._known(name, "columns")
        if kind is None:
            kinds = {kind_of(name) for name in chosen}
            kind = kinds.pop() if len(kinds) == 1 else None
        if kind is None:
            raise self.fail(f'{chosen[0]!r} does not say what it is; pass kind="logits" or kind="probs"')
        return kind, chosen

    def _groups(self, kind: Kind) -> list[tuple[str, ...]]:
        """Everything whose name says `kind`: single fields, and columns that share a prefix."""
        groups: list[tuple[str, ...]] = [(name,) for name in self.names if name.lower() in NAMES[kind]]
        prefixed: dict[str, list[str]] = {}
        for name in self.names:
            match = _CLASS_COLUMN.fullmatch(name)
            if match and name.lower() not in LABELS | NAMES[kind] and _prefix_kind(match["prefix"]) == kind:
                prefixed.setdefault(match["prefix"], []).append(name)
        return groups + [tuple(group) for group in prefixed.values() if len(group) > 1]

    def _generic(self) -> list[tuple[str, ...]]:
        digits = tuple(name for name in self.names if name.isdecimal())
        groups: list[tuple[str, ...]] = [(name,) for name in self.names if name.lower() in GENERIC]
        return [*groups, tuple(sorted(digits, key=int))] if len(digits) > 1 else groups

    def _wide(self, group: tuple[str, ...]) -> bool:
        field = self.source.fields[group[0]]
        return len(group) > 1 or field.type == "object" or field.tail not in ((), (1,))

    def _why_none(self, named: dict[Kind, list[tuple[str, ...]]]) -> str:
        for kind, groups in named.items():
            if groups:
                return (
                    f"{groups[0][0]!r} is one value a row; if it speaks for class 1 of a binary problem, "
                    f'say so with kind="{kind}"'
                )
        generic = self._generic()
        if generic:
            name = generic[0][0]
            return f'{name!r} may be logits or probabilities; pass kind="logits" or kind="probs"'
        return 'nothing is named like logits or probabilities; pass columns="…" and kind="logits" or "probs"'


def kind_of(name: str) -> Kind | None:
    """What a name says: "logits", "probs", or None where it does not say.

    >>> kind_of("logit_3"), kind_of("proba_cat"), kind_of("scores")
    ('logits', 'probs', None)
    """
    match = _CLASS_COLUMN.fullmatch(name)
    for kind, names in NAMES.items():
        if name.lower() in names:
            return kind
    return _prefix_kind(match["prefix"]) if match else None


def class_suffixes(columns: Sequence[str]) -> tuple[str, ...]:
    """The class part of each column: "cat" of prob_cat; the whole name where no prefix is known."""
    matches = [_CLASS_COLUMN.fullmatch(name) for name in columns]
    return tuple((m["name"] or m["digits"]) if m else name for m, name in zip(matches, columns, strict=True))


def numbered(columns: Sequence[str], prefix: str) -> tuple[str, ...] | None:
    """The columns sorted by the number after `prefix`, or None if one has no number there."""
    suffixes = [name.removeprefix(prefix) for name in columns]
    if not all(suffix.isdecimal() for suffix in suffixes):
        return None
    return tuple(sorted(columns, key=lambda name: int(name.removeprefix(prefix))))


def _prefix_kind(prefix: str) -> Kind:
    return "logits" if prefix.lower().startswith("logit") else "probs"
