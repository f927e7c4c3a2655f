"""The benchmark's figures."""

import math

from benchmarks.figures import strip_plot


def test_a_figure_escapes_its_words() -> None:
    made = strip_plot("<b>", "&", [("a<b", [1.0, math.inf])], low=0.1, high=10.0, highlight="")
    assert "<b>" not in made
    assert "a&lt;b" in made
    assert 'cx="710.0"' in made  # infinite: at the right end, 190 + 520
