"""Names of fields: which of them are logits or probabilities, labels and the rest; never a guess."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from calattn.errors import Args, Words
from calattn.files.predictions import PredictionFileError
from calattn.readers.fields import FieldFile
from calattn.registry import nearest
from calattn.types import Kind


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NAMES: dict[Kind, frozenset[str]] = {
    "logits": _words("logits logit y_logits test_logits val_logits"),
    "probs": _words("probs prob probabilities probability proba softmax p y_prob y_probs y_proba test_probs val_probs"),
}
# Names of outputs of a model that do not tell which: `kind` has to.
GENERIC = _words("predictions prediction preds pred y_pred outputs output scores score y_score arr_0")
LABELS = _words(
    "labels label y y_true targets target y_test test_labels val_labels label_ids label_id true truth ground_truth "
    "groundtruth gt gold actual class y_actual true_label true_labels true_class gt_label gt_labels gold_label "
    "actual_label actual_class"
)
SCALE, FEATURES = _words("scale temperature"), _words("features embeddings")
INDICES, CLASS_NAMES = _words("indices index sample_index ids id .row"), _words("class_names classes")
# What tables hold apart from the classes: no class unless named in `columns`. Only names that are hardly ever a class,
# since a class left out is as bad as a false one taken in.
AUXILIARY = GENERIC | _words(
    "fold split subset partition weight weights sample_weight sample_weights predicted predicted_label predicted_class "
    "pred_label pred_class y_hat yhat argmax top1 top_1 pred_idx pred_id predicted_labels pred_labels y_predicted "
    "correct is_correct confidence conf max_prob entropy uncertainty nll brier sample_id row_id idx uid uuid image_id "
    "filename file_name filepath timestamp .pred_class .config .iter"
)
_OTHERS = SCALE | FEATURES | INDICES | CLASS_NAMES | AUXILIARY
# A field called so holds predictions, whatever else it is called: never to be suggested as labels.
_PREDICTED = re.compile(r"pred|argmax|top[_-]?1|hat$|guess|output", re.IGNORECASE)
# The index that pandas writes without being asked, in CSV and in Parquet.
_UNNAMED = re.compile(r"\s*|unnamed: ?\d+(\.\d+)?|__index_level_\d+__", re.IGNORECASE)

# logit_0, prob.cat, p_1, logit0: a prefix for the kind, then the class. `.pred_cat` is that of R's tidymodels.
_CLASS_COLUMN = re.compile(
    r"(?P<prefix>logits?|probs?|proba|probability|probabilities|softmax|p|\.pred)(?:[_.:](?P<name>.+)|(?P<digits>\d+))",
    re.IGNORECASE,
)


_KINDS = (Args(kind="logits"), " or ", Args(kind="probs"))


class Chooser:
    """Recognises the fields of one source by name, or takes those that the caller names."""

    def __init__(
        self, source: FieldFile, ignore: Sequence[str], *, labels: str | None = None, labels_given: bool = False
    ) -> None:
        self.source, self._labels, self._labels_given = source, labels, labels_given
        ignored = set(ignore)
        self.names = [name for name in source.fields if name not in ignored]
        for name in ignore:
            self._known(name, "ignore")

    def fail(self, problem: Words, remedy: Words = "", *, stop: str = ".") -> PredictionFileError:
        fields = self.source.fields
        # Every column of a text file is text of unknown length, which helps nobody.
        described = (name if self.source.is_text else f"{name} ({fields[name]})" for name in self.names[:12])
        shown = ", ".join(part or "''" for part in described)
        more = f" and {len(self.names) - 12} more" if len(self.names) > 12 else ""
        problem, remedy = ((words,) if isinstance(words, str) else words for words in (problem, remedy))
        found = (f"{stop} It has: {shown or 'nothing'}{more}",)
        if any(remedy):
            return PredictionFileError(problem, subject=self.source.address, remedy=(*remedy, *found))
        return PredictionFileError((*problem, *found), subject=self.source.address)

    def values(self, kind: Kind | None, columns: str | Sequence[str] | None) -> tuple[Kind, tuple[str, ...]]:
        """The kind and the fields of the predictions themselves."""
        if "top1_probability" in self.names:
            raise self.fail(
                "it holds only the likeliest classes of new images (calattn predict), and no labels",
                "save all probabilities, and the true class of each image",
            )
        if columns is not None:
            return self._given(kind, columns)
        named = {each: self._groups(each) for each in NAMES}
        present: list[Kind] = [each for each in named if any(self._wide(group) for group in named[each])]
        if kind is None:
            if len(present) > 1:
                raise self.fail("there are both logits and probabilities, and they need not agree", ("pass ", *_KINDS))
            if not present:
                raise self.fail(*self._why_none(named))
            kind = present[0]
        wide = [group for group in named[kind] or self._generic() if self._wide(group)]
        groups = wide or named[kind] or self._class_one(kind) or self._generic()
        if not groups:
            lone = self._lone(kind)
            if len(lone) == 1:
                raise self.fail(*_lone_column(lone[0], kind))
            which = " (one column per class)" if self._leftover() else " with its name"
            raise self.fail(f"there is nothing named like {kind}", ("pass ", self._suggested(), which))
        if len(groups) > 1:
            options = " or ".join(repr(group[0]) if len(group) == 1 else f"{group[0]}…" for group in groups)
            raise self.fail(
                f"several fields could be the {kind}: {options}", ("pass ", Args(columns=...), " to choose")
            )
        only = groups[0]
        if not wide and len(only) == 1 and "pred" in only[0].lower() and self._leftover():
            binary = (Args(columns=only[0]), " if it is the score of class 1 in a binary problem")
            raise self.fail(
                f"{only[0]!r} is one value per row, a predicted class perhaps",
                ("pass ", self._suggested(), " if there is one column per class, ", *binary),
            )
        return kind, only

    def one_of(self, known: Iterable[str], what: str) -> str | None:
        """The one field whose name is among `known`, or None."""
        known = set(known)
        found = [name for name in self.names if name.lower() in known]
        if len(found) > 1:
            raise self.fail(
                f"{' and '.join(map(repr, found))} could both be the {what}",
                ("pass ", Args(ignore=[...]), " for the others"),
            )
        return found[0] if found else None

    def labels(self, values: tuple[str, ...], *, optional: bool = False) -> str | None:
        """The field of the labels, which is none of the `values`; None where there may be none and is none."""
        if self._labels is not None:
            return self._known(self._labels, "labels")
        found = [name for name in self.names if self.is_label(name)]
        if not found and values[0].startswith(".pred"):
            found = self._outcome(values)
        if len(found) > 1:
            both = " and ".join(map(repr, found))
            raise self.fail(f"{both} could both be the labels", ("pass ", Args(labels=found[0])))
        if not found and optional:
            return None
        if not found and self.source.is_ours:
            raise self.fail("it holds predictions without labels", ("pass ", Args(labels="…"), " (an .npy file)"))
        if not found:
            near = self._likely_labels(values) or "…"
            remedy = ("pass ", Args(labels=near), " (a name in the file, or an .npy file)")
            raise self.fail("there is nothing named like labels", remedy)
        return found[0]

    def _outcome(self, values: tuple[str, ...]) -> list[str]:
        """tidymodels keeps the outcome under its own name: columns that hold class names and nothing else."""
        classes, found = {"", *class_suffixes(values)}, []
        of_values = set(values)
        for name in self.names:
            if (
                name not in of_values
                and name.lower() not in _OTHERS
                and self.source.fields[name].type in ("text", "cell", "integer")
            ):
                first = next(self.source.blocks({name: "label"}, 1000), {name: np.array(["", ""])})[name]
                if set(np.asarray(first).astype(str).tolist()) <= classes:
                    found.append(name)
        return found

    def is_label(self, name: str) -> bool:
        """Whether a name says that these are the labels; next to a class "false", "true" is a class too."""
        lowered = name.lower()
        return lowered in LABELS and not (lowered == "true" and "false" in map(str.lower, self.names))

    def _known(self, name: str, argument: str) -> str:
        if name not in self.source.fields:
            if argument == "labels" and (name.lower().endswith(".npy") or os.path.isfile(name)):
                remedy = ("if that is a file, pass ", Args(labels=Path(name)))
                raise self.fail((Args(labels=None), f" names {name!r}"), remedy)
            problem, near = (Args(**{argument: None}), f" names {name!r}"), nearest(name, self.source.fields)
            raise self.fail(problem, f"did you mean {near[0]!r}", stop="?") if near else self.fail(problem)
        return name

    def _given(self, kind: Kind | None, columns: str | Sequence[str]) -> tuple[Kind, tuple[str, ...]]:
        if isinstance(columns, str) and columns not in self.source.fields and "*" in columns:
            # "*" alone is every column that is not something else: a table with one column per class, named after it.
            among = self._leftover() if columns == "*" else self.names
            chosen = tuple(name for name in among if fnmatch.fnmatchcase(name, columns))
            if not chosen:
                raise self.fail(("no column matches ", Args(columns=columns)))
        else:
            chosen = (columns,) if isinstance(columns, str) else tuple(columns)
            for name in chosen:
                self._known(name, "columns")
            kept = set(self.names)
            chosen = tuple(name for name in chosen if name in kept) or chosen  # those of `ignore` are left out
        if kind is None:
            kinds = {kind_of(name) for name in chosen}
            kind = kinds.pop() if len(kinds) == 1 else None
        if kind is None:
            raise self.fail(f"{chosen[0]!r} does not say what it is", ("pass ", *_KINDS))
        return kind, chosen

    def _groups(self, kind: Kind) -> list[tuple[str, ...]]:
        """Everything whose name means `kind`: single fields, and columns that share a prefix."""
        groups: list[tuple[str, ...]] = [(name,) for name in self.names if name.lower() in NAMES[kind]]
        prefixed: dict[str, list[str]] = {}
        for name in self.names:
            match = _class_column(name)
            if match and name.lower() not in LABELS | NAMES[kind] and _prefix_kind(match["prefix"]) == kind:
                prefixed.setdefault(match["prefix"], []).append(name)
        return groups + [tuple(group) for group in prefixed.values() if len(group) > 1]

    def _generic(self) -> list[tuple[str, ...]]:
        names = [name for name in self.names if name != self._labels]
        groups: list[tuple[str, ...]] = [
            (name,) for name in names if name.lower() in GENERIC and self.source.fields[name].type != "text"
        ]
        digits = sorted((name for name in names if name.isdecimal()), key=int)
        wide: list[tuple[str, ...]] = [(name,) for name in digits if self._wide((name,))]
        if wide:  # a list of arrays: its numbers are positions, not classes
            return groups + wide
        return [*groups, tuple(digits)] if len(digits) > self.source.is_table else groups

    def _lone(self, kind: Kind) -> list[str]:
        """Class columns without another: one value per row, such as prob_1."""
        return [n for n in self.names if n != self._labels and kind_of(n) == kind and not self._wide((n,))]

    def _class_one(self, kind: Kind) -> list[tuple[str, ...]]:
        return [(name,) for name in self._lone(kind) if class_suffixes([name]) == ("1",)]

    def _likely_labels(self, values: tuple[str, ...]) -> str | None:
        """The one field apart from `values` that could be labels: a suggestion, never a choice."""
        named = set(self.names) - set(values)
        found = [
            name
            for name, field in self.source.fields.items()
            if name in named
            if name.lower() not in _OTHERS and not _PREDICTED.search(name)
            if field.type in ("integer", "text", "cell") and not field.scalar and not self._wide((name,))
        ]
        return found[0] if len(found) == 1 else None

    def _wide(self, group: tuple[str, ...]) -> bool:
        field = self.source.fields[group[0]]
        return len(group) > 1 or field.type == "object" or field.tail not in ((), (1,))

    def _why_none(self, named: dict[Kind, list[tuple[str, ...]]]) -> tuple[Words, Words]:
        """Problem and remedy."""
        for kind, groups in named.items():
            if groups:
                remedy = ("if it is the score of class 1 in a binary problem, pass ", Args(kind=kind))
                return f"{groups[0][0]!r} is one value per row", remedy
        generic = self._generic()
        if generic:
            name = generic[0][0]
            likely = None if self._names_labels else self._likely_labels(generic[0])
            and_labels = (", and ", Args(labels=likely)) if likely else ()
            others = [] if self._wide(generic[0]) else self._leftover()
            and_columns = ("; if other columns are one per class, ", self._suggested(), " too") if others else ()
            return f"{name!r} may be logits or probabilities", ("pass ", *_KINDS, *and_labels, *and_columns)
        for kind in NAMES:
            if lone := [name for group in self._class_one(kind) for name in group] or self._lone(kind):
                return _lone_column(lone[0], kind)
        if self._names_labels or not self._leftover():
            return "nothing is named like logits or probabilities", ("pass ", self._suggested(), " and ", *_KINDS)
        both = (Args(labels="…"), " with the column of true classes, ", Args(columns="*"))
        return "nothing is named like logits, probabilities or labels", ("pass ", *both, " and ", *_KINDS)

    @property
    def _names_labels(self) -> bool:
        return self._labels_given or self._labels is not None or any(map(self.is_label, self.names))

    def _leftover(self) -> list[str]:
        """Columns of a table that nothing else explains, perhaps one per class: a suggestion, never a choice."""
        found = [
            name
            for name in self.names
            if name != self._labels and name.strip().lower() not in _OTHERS
            if not self.is_label(name.strip()) and not _UNNAMED.fullmatch(name)
            if self.source.fields[name].type in ("real", "integer", "cell")
        ]
        return found if self.source.is_table and len(found) > 1 else []

    def _suggested(self) -> Args:
        names = self._leftover()
        return Args(columns=("*" if len(names) > 8 else names) if names else "…")


def _class_column(name: str) -> re.Match[str] | None:
    return None if name.lower() in AUXILIARY else _CLASS_COLUMN.fullmatch(name)


def kind_of(name: str) -> Kind | None:
    """What a name means: "logits", "probs", or None where it does not tell.

    >>> kind_of("logit_3"), kind_of("proba_cat"), kind_of("scores")
    ('logits', 'probs', None)
    """
    match = _class_column(name)
    of_prefix = _prefix_kind(match["prefix"]) if match else None
    return next((kind for kind, names in NAMES.items() if name.lower() in names), of_prefix)


def class_suffixes(columns: Sequence[str]) -> tuple[str, ...]:
    """The class part of each column: "cat" of prob_cat; the whole name where no prefix is known."""
    matches = [_class_column(name) for name in columns]
    return tuple((m["name"] or m["digits"]) if m else name for m, name in zip(matches, columns, strict=True))


def _lone_column(name: str, kind: Kind) -> tuple[Words, Words]:
    """What to pass for the only class column; unless it is numbered 1, it need not be class 1."""
    columns = () if class_suffixes([name]) == ("1",) else (Args(columns=name), " and ")
    remedy = ("if it is the score of class 1 in a binary problem, pass ", *columns, Args(kind=kind))
    return f"{name!r} is one value per row and the only class column", remedy


def _prefix_kind(prefix: str) -> Kind:
    return "logits" if prefix.lower().startswith("logit") else "probs"
