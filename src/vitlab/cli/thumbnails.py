"""Small pictures in a terminal: two pixels a character, as half blocks in true colour."""

import numpy as np
from jaxtyping import UInt8
from PIL import Image
from rich.color import Color
from rich.style import Style
from rich.text import Text

UPPER_HALF = "▀"


def thumbnail(image: UInt8[np.ndarray, "H W 3"], side: int) -> Text:
    """The image as `side` columns and `side / 2` lines."""
    small = np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.BOX))
    text = Text(no_wrap=True)
    for row in range(0, side, 2):
        for upper, lower in zip(small[row].tolist(), small[row + 1].tolist(), strict=True):
            style = Style(color=Color.from_rgb(*upper), bgcolor=Color.from_rgb(*lower))
            text.append(UPPER_HALF, style)
        text.append("\n")
    text.rstrip()
    return text
