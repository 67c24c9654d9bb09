"""What the numbers say, in sentences: nothing where an interval crosses zero."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from vitlab.experiments.spec import MOST_STEPS, Experiment
from vitlab.experiments.statistics import Difference, Summary

ONE_SEED = {"images": "other test images", "draws": "other draws of the few images"}
"""What an interval of one seed is about."""
MANY = 5
"""Intervals of 95 % of which one or more misses the truth with a probability above a fifth."""
EVEN = 0.8
"""Part of the compute of others from which on it is as much, but for whole steps."""


def conclusion(experiment: Experiment, found: Sequence[Difference]) -> list[str]:
    """A sentence for each difference that may be claimed, and how far they can be trusted."""
    claimed = [item for item in found if item.verdict != "open"]
    sentences = [_sentence(experiment, item) for item in claimed]
    caveats = (*_caveats(found, claimed, experiment.margin), *_once(experiment, claimed))
    return [*sentences, *caveats] if found else []


def uneven(experiment: Experiment, known: Mapping[str, Summary]) -> list[str]:
    """Arms that could not spend the compute that all should have, each with its part of it."""
    if experiment.matched != "compute":
        return []
    spent = {n: found.pflops / experiment.arm(n).budget for n, found in known.items()}
    most = max(spent.values(), default=0.0)
    return [
        f"“{experiment.arm(name).shown}” spent {part / most:.1%} of the compute"
        f"{': its steps are limited' if _limited(experiment, known, name) else ''}."
        for name, part in spent.items()
        if part < EVEN * most and experiment.arm(name).how != "test"
    ]


def _limited(experiment: Experiment, known: Mapping[str, Summary], name: str) -> bool:
    """Whether an arm took as many times the steps of the first as any arm may."""
    first = experiment.arms[0]
    if first.name not in known:
        return False
    steps = {n: known[n].steps / experiment.arm(n).budget for n in (first.name, name)}
    return steps[name] > 0.99 * MOST_STEPS * steps[first.name]


def failed(names: Collection[str]) -> list[str]:
    """Which trainings are missing from the numbers."""
    if not names:
        return []
    return [f"Failed, so that differences leave that seed out: {'; '.join(names)}."]


def overfitting(experiment: Experiment, known: Mapping[str, Summary]) -> list[str]:
    """How much better each arm tells the images that it learnt from, where that was measured."""
    parts = [
        f"“{experiment.arm(name).shown}” {100 * found.train_accuracy:.1f} % "
        f"({points(found.train_accuracy - found.mean)})"
        for name, found in known.items()
        if found.train_accuracy is not None and experiment.measure == "accuracy"
    ]
    if not parts:
        return []
    return [f"Right of the images learnt from, and points above the test: {'; '.join(parts)}."]


def sides(experiment: Experiment, item: Difference) -> tuple[str, str]:
    """What is compared with what, in words."""
    if item.beside:
        names = [experiment.arm(n).shown for n in (item.arm, item.against, *item.beside)]
        return f"{names[0]}, over {names[1]}", f"{names[2]}, over {names[3]}"
    arm, other = (experiment.arm(name) for name in (item.arm, item.against))
    if item.chosen:
        return f"best of {arm.series}: {arm.shown}", f"best of {other.series}: {other.shown}"
    return arm.shown, other.shown


def _sentence(experiment: Experiment, item: Difference) -> str:
    arm, other = (_name(experiment, name, item.chosen) for name in (item.arm, item.against))
    if item.beside:
        two = [_name(experiment, name, False) for name in item.beside]
        arm, other = f"What {arm} gains over {other}", f"what {two[0]} gains over {two[1]}"
    assert item.low is not None
    assert item.high is not None
    span = f"{points(item.low)} to {points(item.high)}"
    if item.verdict == "equal":
        return (
            f"{arm} and {other} are equal within {amount(experiment.margin)} "
            f"({points(item.mean)}, {span})."
        )
    size = f"{abs(100 * item.mean):.1f} points ({span})"
    if item.beside:
        return f"{arm} is {'more' if item.verdict == 'better' else 'less'} than {other} by {size}."
    return f"{arm} is {item.verdict} than {other} by {size}."


def _name(experiment: Experiment, name: str, chosen: bool) -> str:
    arm = experiment.arm(name)
    return f"“{arm.shown}”, the best of “{arm.series}”," if chosen else f"“{arm.shown}”"


def amount(share: float) -> str:
    """A number of points without a sign."""
    return f"{100 * share:g} point{'' if share == 0.01 else 's'}"


def points(share: float) -> str:
    """A difference of two shares, with its sign."""
    text = f"{100 * share:+.1f}".replace("-", "−")
    return text.replace("−0.0", "0.0").replace("+0.0", "0.0")


def _caveats(
    found: Sequence[Difference], claimed: Sequence[Difference], margin: float
) -> Iterator[str]:
    without = sum(item.low is None for item in found)
    if without and any(item.over == "seeds" for item in found):
        yield (
            f"Differences without an interval, of one seed in common or the same in every seed: "
            f"{without}."
        )
    elif without == len(found):
        yield "One seed of such a measure has no interval: nothing is claimed."
    if not claimed and without < len(found):
        yield "No difference may be claimed."
    for kind, what in ONE_SEED.items():
        if any(item.over == kind and item.low is not None for item in found):
            yield (
                f"There is one seed: intervals tell what {what} would change, and nothing of other "
                f"seeds, so that of different trainings no smaller difference than "
                f"{amount(margin)} is claimed, and none are called equal."
            )
    if len(found) - without >= MANY and claimed:
        yield (
            f"Of {len(found) - without} intervals of 95 %, each by itself, one or more may miss "
            f"the truth by chance."
        )


def _once(experiment: Experiment, claimed: Sequence[Difference]) -> Iterator[str]:
    """What is trained once for all seeds is no sample of its kind."""
    names = {name for item in claimed for name in (item.arm, item.against, *item.beside)}
    arms = [experiment.arm(name) for name in names]
    if any(
        arm.weights == "learnt" and arm.start and experiment.arm(arm.start).once for arm in arms
    ):
        yield "Each pre-training was done once: intervals tell nothing of other pre-trainings."
