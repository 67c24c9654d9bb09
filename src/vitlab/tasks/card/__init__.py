"""The model card: what a bundle, a run or a weight file is, for people and for the hub."""

from vitlab.tasks.card.content import Card as Card
from vitlab.tasks.card.content import Measured as Measured
from vitlab.tasks.card.content import StoredFile as StoredFile
from vitlab.tasks.card.markdown import markdown as markdown
from vitlab.tasks.card.markdown import write_markdown as write_markdown
from vitlab.tasks.card.read import read_card as read_card
from vitlab.tasks.card.words import Section as Section
from vitlab.tasks.card.words import sections as sections

__all__ = [
    "Card",
    "Measured",
    "Section",
    "StoredFile",
    "markdown",
    "read_card",
    "sections",
    "write_markdown",
]
