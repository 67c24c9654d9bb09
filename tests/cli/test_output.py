"""Numbers as people read them."""

import pytest

from vitlab.cli.output import human


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1 k"),
        (24_202, "24.2 k"),
        (999_499, "999 k"),
        (999_500, "1 M"),
        (86_567_656, "86.6 M"),
        (35_128_350_720, "35.1 G"),
        (2e18, "2e+03 P"),
    ],
)
def test_three_digits_and_a_unit(number: float, text: str) -> None:
    assert human(number) == text
