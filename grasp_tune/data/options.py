"""What may be said about the data, one section for each kind, told apart by `name`.

A section has the keys and `loader`, the function that makes the data; nothing here loads torch.
"""

import codecs
import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from grasp_tune.config import section as s
from grasp_tune.core.errors import InputError


def _is_encoding(name: object) -> bool:
    try:
        return bool(codecs.lookup(str(name)))
    except LookupError:
        return False


_DIVIDES = s.checked(lambda x: re.fullmatch(r'[^\r\n"]', str(x)), "one character between columns")


class Dataset(s.NamedSection):
    """The keys of one kind of data."""

    # `module:function`; takes the section and returns a `Data`. Empty: that name in `catalog`.
    loader: ClassVar[str] = ""


class Table(Dataset):
    """Rows of numbers."""

    scale: s.Positive = 1.0
    """Every feature is multiplied by this number, after `standardize`."""
    standardize: s.FlagOrAuto = False
    """Shift and divide each feature to mean 0, variance 1; `auto`: where their scales differ."""
    rows: s.Count | None = None
    """Use only so many training rows, picked at random once; empty: all."""
    test_share: s.Share = 0.0
    """Share of the rows kept aside to judge the final model, where there are no other test rows."""


class Digits(Table):
    """1,797 handwritten digits of 8 x 8 pixels (10 classes), shipped with scikit-learn."""

    name: Annotated[Literal["digits"], s.KIND] = "digits"
    test_share: s.Share = 0.2
    """Share of the rows kept aside to judge the final model, never used in training."""


class Spirals(Digits):
    """3,000 points in the plane on three spiral arms (3 classes), made here: needs no package."""

    name: Annotated[Literal["spirals"], s.KIND] = "spirals"  # type: ignore[assignment]


class BreastCancer(Digits):
    """569 tumours, 30 measurements, 2 classes, shipped with scikit-learn."""

    name: Annotated[Literal["breast_cancer"], s.KIND] = "breast_cancer"  # type: ignore[assignment]
    standardize: s.FlagOrAuto = True
    """Shift and divide each feature to mean 0, variance 1: their scales differ by 10,000."""


class TableFile(Table):
    """Rows of numbers in a file."""

    path: s.PathText
    """The file with the training rows."""
    task: Literal["auto", "classification", "regression"] = "auto"
    """What the labels are; `auto` takes words as classes, and whole numbers if there are at most 20
    different ones or each comes ten times on average."""
    max_gib: s.Positive = 8.0
    """Refuse data that need more memory than this (GiB)."""


class Npz(TableFile):
    """Arrays in one `.npz` file of NumPy; arrays of Python objects are refused."""

    name: Annotated[Literal["npz"], s.KIND] = "npz"
    x: s.Text = "x_train"
    """Name of the training inputs in it."""
    y: s.Text = "y_train"
    """Name of the training labels in it."""
    x_test: s.Text = "x_test"
    """Name of the test inputs, if it has them."""
    y_test: s.Text = "y_test"
    """Name of the test labels, if it has them."""


class TextFile(TableFile):
    """Rows in a text file, and perhaps others for tests and validation."""

    test_path: s.PathText | None = None
    """A file with the test rows."""
    validation_path: s.PathText | None = None
    """A file with validation rows, on which the final choice is made."""


class Libsvm(TextFile):
    """Rows `label index:value ...` in LIBSVM's text format."""

    name: Annotated[Literal["libsvm"], s.KIND] = "libsvm"
    features: Annotated[s.Count, Field(le=10_000_000)] | None = None
    """Number of features; empty: the largest index found."""
    zero_based: s.FlagOrAuto = "auto"
    """Whether indices start at 0; `auto`: if an index 0 occurs."""


class Csv(TextFile):
    """A table in a text file with a header line."""

    loader: ClassVar[str] = "grasp_tune.data.csv_table:csv_table"
    name: Annotated[Literal["csv"], s.KIND] = "csv"
    target: s.Text | None = None
    """Column with the label; empty: the last one."""
    delimiter: Annotated[str, _DIVIDES] | None = None
    """The character between columns; empty: comma, semicolon, tab or `|`, as in the header."""
    encoding: Annotated[s.Text, s.checked(_is_encoding, "an encoding such as cp1252")] = "utf-8"
    """How the text is stored; spreadsheets on Windows write `cp1252`. UTF-16 is recognized."""
    decimal: Literal[".", ","] = "."
    """The character before the decimals of a number; with a comma, points divide thousands."""
    drop: tuple[s.Text, ...] = ()
    """Columns to leave out, such as names and row numbers."""
    encode: s.Flag = True
    """A column of 0 and 1 for each word, the mean for blank numbers; off: both are errors."""
    standardize: s.FlagOrAuto = "auto"
    """Shift and divide columns of numbers to mean 0, variance 1; `auto`: where scales differ."""


class Images(Dataset):
    """Pictures, kept as bytes in memory and turned into numbers by the model's first layer."""

    scale: s.Positive = 1.0
    """Every pixel is multiplied by this number, after `normalize`."""
    normalize: s.Flag = True
    """Shift and divide each colour to mean 0, variance 1; off: pixels from 0 to 1."""
    rows: s.Count | None = None
    """Use only so many training pictures, picked at random once; empty: all."""


class TorchvisionImages(Images):
    """70,000 handwritten digits of 28 x 28 pixels (mnist), or 60,000 colour pictures of 32 x 32
    pixels (cifar10), in 10 classes each, as torchvision reads them."""

    loader: ClassVar[str] = "grasp_tune.data.images:published_images"
    name: Annotated[Literal["mnist", "cifar10"], s.KIND]
    path: s.PathText | None = None
    """Folder of the files; empty: the variable GRASP_TUNE_DATA, else ~/.cache/grasp_tune/data."""
    download: Annotated[s.Flag, s.REACHES] = False
    """Allow the files to be fetched from the internet when they are not there."""


class ImageFolder(Images):
    """Pictures sorted into one folder per class."""

    loader: ClassVar[str] = "grasp_tune.data.images:image_folder"
    name: Annotated[Literal["image_folder"], s.KIND] = "image_folder"
    path: s.PathText
    """Folder with (train, and test or val)/<class>/<picture>, or with <class>/<picture>."""
    size: Annotated[s.Count, Field(le=1024)] = 32
    """Side in pixels to which every picture is brought."""
    channels: Literal[1, 3] = 3
    """1: grey, 3: colour."""
    max_gib: s.Positive = 8.0
    """Refuse folders whose pictures need more memory than this (GiB)."""


class OwnData(Dataset):
    """Data from your own function, imported when the problem is built."""

    loader: ClassVar[str] = "grasp_tune.data.catalog:own_data"
    name: s.EntryPoint
    """`module:function` that returns `(x, y)`, `(x, y, x_test, y_test)`, a `Data`, or one or two
    (training, test) of torch's `Dataset`s or `DataLoader`s."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keywords for the function."""
    num_workers: Annotated[s.Whole, Field(ge=0, le=1024)] = 0
    """Processes that read the rows of a `Dataset`; 0: this one."""
    collate_fn: s.EntryPoint | None = None
    """`module:function` that makes a batch `(x, y)` of a list of rows; empty: torch's own."""


DATASETS: dict[str, type[Dataset]] = s.by_name(
    Digits, BreastCancer, Spirals, TorchvisionImages, ImageFolder, Npz, Libsvm, Csv, OwnData
)


def register(kind: type[Dataset]) -> type[Dataset]:
    """Enter a kind of data, so that configs may name it; also a decorator.

    kind: a `Dataset` with its `name` and its `loader`; a name that is known already is an error.
    """
    name = kind.model_fields["name"].default
    if DATASETS.setdefault(name, kind) is not kind:
        raise InputError(f"data set: got {name!r}, which {DATASETS[name].__name__} is called")
    from grasp_tune.config.schema import Experiment, Problem

    Problem.model_rebuild(force=True)
    Experiment.model_rebuild(force=True)
    return kind
