"""Names in figures, letter by letter."""

import io

import pytest
from matplotlib.figure import Figure

from vitlab.io.text import literal


@pytest.mark.parametrize("name", ["$_$", r"a $\foo$ b", "US$ vs A$", "_other", r"\$", "plain", "$"])
def test_names_are_shown_letter_by_letter(name: str) -> None:
    figure, file = Figure(), io.StringIO()
    axes = figure.subplots()
    axes.plot([1], [1], "o", label=literal(name))
    axes.legend()
    figure.savefig(file, format="svg")
    comments = file.getvalue().split("<!-- ")[1:]
    assert any(part.split(" -->")[0].lstrip("\u200b") == name for part in comments)
