"""Names that people gave to files, classes and arms, in figures."""

from vitlab.visible_text import visible


def literal(text: str) -> str:
    """Text that matplotlib shows letter by letter.

    A `$` would begin a formula, and a name with `_` in front would be left out of legends.
    """
    shown = visible(text, keep="\n").replace("$", r"\$")
    return f"\u200b{shown}" if shown.startswith("_") else shown
