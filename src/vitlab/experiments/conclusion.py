"""What the numbers say, in sentences: nothing where an interval crosses zero."""

from collections.abc import Iterator, Mapping, Sequence

from vitlab.experiments.spec import Experiment
from vitlab.experiments.statistics import Difference, Summary

EVEN = 0.8
"""Part of the compute of others from which on it is as much, but for whole steps."""


def conclusion(experiment: Experiment, found: Sequence[Difference]) -> list[str]:
    """A sentence for each difference that may be claimed, and how far they can be trusted."""
    claimed = [item for item in found if item.verdict != "open"]
    sentences = [_sentence(experiment, item) for item in claimed]
    caveats = (*_caveats(found, claimed), *_once(experiment, claimed))
    return [*sentences, *caveats] if found else []


def uneven(experiment: Experiment, known: Mapping[str, Summary]) -> list[str]:
    """Arms that could not spend the compute that all should have, each with its part of it."""
    if experiment.matched != "compute":
        return []
    spent = {n: found.pflops / experiment.arm(n).budget for n, found in known.items()}
    most = max(spent.values(), default=0.0)
    return [
        f"“{experiment.arm(name).shown}” spent {part / most:.1%} of the compute: its steps are "
        f"limited."
        for name, part in spent.items()
        if part < EVEN * most and not experiment.arm(name).start
    ]


def _sentence(experiment: Experiment, item: Difference) -> str:
    arm, other = (_name(experiment, name, item.chosen) for name in (item.arm, item.against))
    assert item.low is not None
    assert item.high is not None
    span = f"{points(item.low)} to {points(item.high)}"
    if item.verdict == "equal":
        return (
            f"{arm} and {other} are equal within {amount(experiment.margin)} "
            f"({points(item.mean)}, {span})."
        )
    size = f"{abs(100 * item.mean):.1f} points ({span})"
    return f"{arm} is {item.verdict} than {other} by {size}."


def _name(experiment: Experiment, name: str, chosen: bool) -> str:
    arm = experiment.arm(name)
    return f"The best of “{arm.series}” ({arm.shown})" if chosen else f"“{arm.shown}”"


def amount(share: float) -> str:
    """A number of points without a sign."""
    return f"{100 * share:g} point{'' if share == 0.01 else 's'}"


def points(share: float) -> str:
    """A difference of two shares, with its sign."""
    text = f"{100 * share:+.1f}".replace("-", "−")
    return text.replace("−0.0", "0.0").replace("+0.0", "0.0")


def _caveats(found: Sequence[Difference], claimed: Sequence[Difference]) -> Iterator[str]:
    if all(item.low is None for item in found):
        yield "One seed of such a measure has no interval: nothing is claimed."
    elif not claimed:
        yield "No difference can be told from chance."
    if any(item.over == "images" for item in claimed):
        yield (
            "There is one seed: intervals tell what other test images would change, and nothing of "
            "other seeds."
        )
    if len(found) >= 10 and claimed:
        yield (
            f"Of {len(found)} intervals of 95 %, each by itself, one or more may miss the truth by "
            "chance."
        )


def _once(experiment: Experiment, claimed: Sequence[Difference]) -> Iterator[str]:
    """What is trained once for all seeds is no sample of its kind."""
    names = {name for item in claimed for name in (item.arm, item.against)}
    arms = [experiment.arm(name) for name in names]
    if any(
        arm.weights == "learnt" and arm.start and experiment.arm(arm.start).once for arm in arms
    ):
        yield "Each pre-training was done once: intervals tell nothing of other pre-trainings."
