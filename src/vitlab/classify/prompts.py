"""Labels and templates of zero-shot classification: from a label to the texts that describe it."""

from collections import Counter
from collections.abc import Sequence

from vitlab.errors import InputError
from vitlab.task import TEMPLATE

PLACE = "{}"


def prompts(label: str, templates: Sequence[str]) -> list[str]:
    """Texts of one label, one for each template."""
    return [template.replace(PLACE, label) for template in templates]


def check_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """Labels without spaces around them; raise for none, and for empty or repeated ones."""
    if isinstance(labels, str):
        raise InputError(f"labels {labels!r}; valid: a list of names, such as ['cat', 'dog']")
    found = tuple(str(label).strip() for label in labels)
    if not found:
        raise InputError("no labels; valid: at least one name")
    if "" in found:
        raise InputError(f"label {found.index('') + 1} of {len(found)} is empty; valid: a name")
    label, count = Counter(found).most_common(1)[0]
    if count > 1:
        raise InputError(f"label {label!r} is given {count} times; valid: each label once")
    return found


def check_templates(templates: str | Sequence[str]) -> tuple[str, ...]:
    """Templates as a tuple; raise for none, and for one without a place for the label."""
    found = (templates,) if isinstance(templates, str) else tuple(templates)
    if not found:
        raise InputError(f"no templates; valid: at least one, such as {TEMPLATE!r}")
    for template in found:
        if PLACE not in template:
            raise InputError(
                f"template {template!r} has no place for the label; valid: a text with {PLACE}, "
                f"such as {TEMPLATE!r}"
            )
    return found
