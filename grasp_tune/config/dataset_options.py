"""What may be said about the data: one section per kind, told apart by `name`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from grasp_tune.config.section import (
    Count,
    EntryPoint,
    Flag,
    FlagOrAuto,
    Real,
    Section,
    Text,
    Whole,
    name_tag,
    named,
)

TaskName = Literal["auto", "classification", "regression"]
TestShare = Annotated[Real, Field(ge=0, lt=1)]

_TEST_SHARE = "Share of the rows kept aside to judge the final model, never used in training."
_TASK = (
    "What the labels are: classes, or numbers to predict; `auto` takes whole numbers and words as "
    "classes."
)


class _Table(Section):
    """Rows of numbers."""

    scale: Annotated[
        Real,
        Field(gt=0, description="Every feature is multiplied by this number, after `standardize`."),
    ] = 1.0
    standardize: Annotated[
        Flag,
        Field(
            description="Shift and divide each feature to mean 0, variance 1 on the training rows."
        ),
    ] = False
    rows: Annotated[
        Count | None,
        Field(description="Use only so many training rows, picked at random once; empty: all."),
    ] = None


class Digits(_Table):
    """1,797 handwritten digits of 8 x 8 pixels (10 classes), shipped with scikit-learn."""

    name: Annotated[Literal["digits"], Field(description="This kind of data.")] = "digits"
    test_share: Annotated[TestShare, Field(description=_TEST_SHARE)] = 0.2


class BreastCancer(_Table):
    """569 tumours, 30 measurements, 2 classes, shipped with scikit-learn."""

    name: Annotated[Literal["breast_cancer"], Field(description="This kind of data.")] = (
        "breast_cancer"
    )
    standardize: Annotated[
        Flag,
        Field(
            description="Shift and divide each feature to mean 0, variance 1; on by default, for "
            "the columns' scales differ by 10,000."
        ),
    ] = True
    test_share: Annotated[TestShare, Field(description=_TEST_SHARE)] = 0.2


class Npz(_Table):
    """Arrays in one `.npz` file of NumPy; arrays of Python objects are refused."""

    name: Annotated[Literal["npz"], Field(description="This kind of data.")] = "npz"
    path: Annotated[Text, Field(description="The file.")]
    x: Annotated[Text, Field(description="Name of the training inputs in it.")] = "x_train"
    y: Annotated[Text, Field(description="Name of the training labels in it.")] = "y_train"
    x_test: Annotated[Text, Field(description="Name of the test inputs, if it has them.")] = (
        "x_test"
    )
    y_test: Annotated[Text, Field(description="Name of the test labels, if it has them.")] = (
        "y_test"
    )
    test_share: Annotated[
        TestShare, Field(description=f"{_TEST_SHARE} Not allowed when the file has test rows.")
    ] = 0.0
    task: Annotated[TaskName, Field(description=_TASK)] = "auto"
    max_gib: Annotated[
        Real,
        Field(gt=0, description="Refuse a file whose arrays need more memory than this (GiB)."),
    ] = 8.0


class Libsvm(_Table):
    """Rows `label index:value ...` in LIBSVM's text format."""

    name: Annotated[Literal["libsvm"], Field(description="This kind of data.")] = "libsvm"
    path: Annotated[Text, Field(description="The file with the training rows.")]
    test_path: Annotated[Text | None, Field(description="A file with the test rows.")] = None
    features: Annotated[
        Count | None,
        Field(le=10_000_000, description="Number of features; empty: the largest index found."),
    ] = None
    zero_based: Annotated[
        FlagOrAuto,
        Field(description="Whether indices start at 0; `auto`: if an index 0 occurs."),
    ] = "auto"
    test_share: Annotated[
        TestShare, Field(description=f"{_TEST_SHARE} Not allowed together with `test_path`.")
    ] = 0.0
    task: Annotated[TaskName, Field(description=_TASK)] = "auto"
    max_gib: Annotated[
        Real,
        Field(gt=0, description="Refuse rows that need more memory than this when dense (GiB)."),
    ] = 8.0


class Csv(_Table):
    """A table in a text file with a header line; every column but the label holds numbers."""

    name: Annotated[Literal["csv"], Field(description="This kind of data.")] = "csv"
    path: Annotated[Text, Field(description="The file with the training rows.")]
    test_path: Annotated[Text | None, Field(description="A file with the test rows.")] = None
    target: Annotated[
        Text | None, Field(description="Column with the label; empty: the last one.")
    ] = None
    delimiter: Annotated[
        Text, Field(min_length=1, max_length=1, description="The character between two columns.")
    ] = ","
    test_share: Annotated[
        TestShare, Field(description=f"{_TEST_SHARE} Not allowed together with `test_path`.")
    ] = 0.0
    task: Annotated[TaskName, Field(description=_TASK)] = "auto"
    max_gib: Annotated[
        Real, Field(gt=0, description="Refuse a table that needs more memory than this (GiB).")
    ] = 8.0


class _Images(Section):
    """Pictures, kept as bytes in memory and turned into numbers by the model's first layer."""

    scale: Annotated[
        Real,
        Field(gt=0, description="Every pixel is multiplied by this number, after `normalize`."),
    ] = 1.0
    normalize: Annotated[
        Flag,
        Field(
            description="Shift and divide each colour channel to mean 0 and variance 1 on the "
            "training pictures; off: pixels from 0 to 1."
        ),
    ] = True
    rows: Annotated[
        Count | None,
        Field(description="Use only so many training pictures, picked at random once; empty: all."),
    ] = None


class _Downloadable(_Images):
    path: Annotated[
        Text | None,
        Field(
            description="Folder that holds the files, or will hold them; empty: the folder that "
            "the environment variable GRASP_TUNE_DATA names, else ~/.cache/grasp_tune/data."
        ),
    ] = None
    download: Annotated[
        Flag,
        Field(
            description="Allow the files to be fetched from the internet when they are not there."
        ),
    ] = False


class Mnist(_Downloadable):
    """70,000 handwritten digits of 28 x 28 pixels, read by torchvision."""

    name: Annotated[Literal["mnist"], Field(description="This kind of data.")] = "mnist"


class Cifar10(_Downloadable):
    """60,000 colour pictures of 32 x 32 pixels in 10 classes, read by torchvision."""

    name: Annotated[Literal["cifar10"], Field(description="This kind of data.")] = "cifar10"


class ImageFolder(_Images):
    """Pictures sorted into one folder per class."""

    name: Annotated[Literal["image_folder"], Field(description="This kind of data.")] = (
        "image_folder"
    )
    path: Annotated[
        Text,
        Field(
            description="Folder with train/<class>/<picture> and, if there are test pictures, "
            "test/<class>/<picture>; or with <class>/<picture> directly."
        ),
    ]
    size: Annotated[
        Whole, Field(ge=1, le=1024, description="Side in pixels to which every picture is brought.")
    ] = 32
    channels: Annotated[Literal[1, 3], Field(description="1: grey, 3: colour.")] = 3
    max_gib: Annotated[
        Real,
        Field(gt=0, description="Refuse folders whose pictures need more memory than this (GiB)."),
    ] = 8.0


class EntryPointData(Section):
    """Data from your own function, imported when the problem is built."""

    name: Annotated[
        EntryPoint,
        Field(
            description="`module:function`; the function takes `options` as keywords and returns "
            "`(x, y)`, `(x, y, x_test, y_test)` or a `Data`."
        ),
    ]
    options: Annotated[dict[str, Any], Field(description="Keywords for the function.")] = Field(
        default_factory=dict
    )


DATASETS: dict[str, type[Section]] = {
    "digits": Digits,
    "breast_cancer": BreastCancer,
    "mnist": Mnist,
    "cifar10": Cifar10,
    "image_folder": ImageFolder,
    "npz": Npz,
    "libsvm": Libsvm,
    "csv": Csv,
    "module:function": EntryPointData,
}

_AnyDataset = Annotated[
    Annotated[Digits, Tag("digits")]
    | Annotated[BreastCancer, Tag("breast_cancer")]
    | Annotated[Mnist, Tag("mnist")]
    | Annotated[Cifar10, Tag("cifar10")]
    | Annotated[ImageFolder, Tag("image_folder")]
    | Annotated[Npz, Tag("npz")]
    | Annotated[Libsvm, Tag("libsvm")]
    | Annotated[Csv, Tag("csv")]
    | Annotated[EntryPointData, Tag("module:function")],
    Discriminator(name_tag),
]
DatasetOptions = Annotated[
    _AnyDataset, BeforeValidator(named, json_schema_input_type=str | _AnyDataset)
]
