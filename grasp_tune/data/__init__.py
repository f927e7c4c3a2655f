"""Data by name. Describing data (`grasp_tune.data.options`) loads no torch; reading them does."""

from typing import TYPE_CHECKING

from grasp_tune.extras import lazy_names

if TYPE_CHECKING:
    from grasp_tune.data.catalog import load_data as load_data
    from grasp_tune.data.data import Data as Data
    from grasp_tune.data.data import DataSpec as DataSpec
    from grasp_tune.data.data import PixelScale as PixelScale
    from grasp_tune.data.options import Dataset as Dataset
    from grasp_tune.data.options import register as register

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
