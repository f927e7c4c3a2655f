"""Data by name: each kind of data in its own file, loaded only when a config names it."""

from grasp_tune.data.catalog import load_data
from grasp_tune.data.data import Data, DataSpec, PixelScale

__all__ = ["Data", "DataSpec", "PixelScale", "load_data"]
