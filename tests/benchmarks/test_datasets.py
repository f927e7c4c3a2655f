"""The benchmark's data."""

from benchmarks import datasets


def test_random_columns_are_powers_of_ten_within_two() -> None:
    arrays = datasets.sklearn_table("iris")
    factors = (datasets.random_columns(arrays.x) / arrays.x)[arrays.x.min(dim=1).values > 0]
    assert float(factors.std(dim=0).max()) < 1e-3 * float(factors.max())  # one a column
    assert 1e-2 <= float(factors.min()) < float(factors.max()) <= 1e2
