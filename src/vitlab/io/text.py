"""Text from files, folders and downloads, made safe to print."""

import re
from html import escape

HIDDEN = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # control characters, with ESC, line breaks and tabs
    "\u2028\u2029"  # line and paragraph separators
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction marks and overrides
    "\xad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200c\u2060-\u2065\u206a-\u206f"
    "\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff"  # invisible characters
    "\ud800-\udfff"  # bytes of file names that are not text
    "]"
    "|(?<![\u2600-\u27bf\ufe0f\U0001f000-\U0001faff])\u200d"  # a joiner, except within an emoji
)
"""Characters that act on a terminal, fake a line, reorder text or cannot be seen."""


def visible(text: str, *, keep: str = "") -> str:
    r"""Replace characters that act or hide by escapes such as `\x1b`, `\n` and `\u202e`.

    All other text is unchanged, in every script. Characters in `keep` are unchanged too.
    """
    return HIDDEN.sub(lambda found: found[0] if found[0] in keep else _escape(found[0]), text)


def markdown_text(text: str) -> str:
    """Text escaped for Markdown, also in a cell of a table."""
    escaped = escape(visible(text), quote=False)
    for sign in "\\`*_[]|":
        escaped = escaped.replace(sign, f"\\{sign}")
    return escaped


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


# Names of files, classes and arms, in figures.


def literal(text: str) -> str:
    """Text that matplotlib renders literally.

    A `$` would begin a formula, and a name with a leading `_` would be missing in legends.
    """
    shown = visible(text, keep="\n").replace("$", r"\$")
    return f"\u200b{shown}" if shown.startswith("_") else shown
