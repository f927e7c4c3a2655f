"""Data by name: each kind of data in its own file, loaded only when a config names it.

Describing data (`grasp_tune.data.options`) loads no torch; reading them does.
"""

from typing import TYPE_CHECKING

from grasp_tune.lazy_names import lazy_names

if TYPE_CHECKING:
    from grasp_tune.data.catalog import load_data
    from grasp_tune.data.data import Data, DataSpec, PixelScale
    from grasp_tune.data.options import Dataset, register

__all__ = ["Data", "DataSpec", "Dataset", "PixelScale", "load_data", "register"]

_HOMES = {"load_data": "catalog", "Dataset": "options", "register": "options"}
__getattr__, __dir__ = lazy_names(
    __name__, {name: f"{__name__}.{_HOMES.get(name, 'data')}" for name in __all__}
)
