"""The small real data sets that come with scikit-learn: nothing is downloaded."""

from __future__ import annotations

from types import ModuleType

from grasp_tune.data.data import Data
from grasp_tune.data.options import BreastCancer, Digits
from grasp_tune.data.table import Table, table_data
from grasp_tune.extras import need


def digits(options: Digits) -> Data:
    """Handwritten digits, 8 x 8 pixels from 0 to 1, as pictures of one channel."""
    bunch = _sklearn("the data set digits").load_digits()
    # The files count ink from 0 to 16.
    return table_data("digits", Table(bunch.images[:, None] / 16.0, bunch.target), options)


def breast_cancer(options: BreastCancer) -> Data:
    """Measurements of tumours, malignant (0) or benign (1)."""
    bunch = _sklearn("the data set breast_cancer").load_breast_cancer()
    labels = tuple(str(name) for name in bunch.target_names)
    return table_data("breast_cancer", Table(bunch.data, bunch.target, labels=labels), options)


def _sklearn(purpose: str) -> ModuleType:
    return need("sklearn.datasets", "datasets", purpose, "scikit-learn")
