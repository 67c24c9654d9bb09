"""An experiment as data: arms that differ from a base recipe, and what is compared with what."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from vitlab.errors import ConfigError, UnknownName

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""An arm's name is a folder's."""
MOST_STEPS = 8
"""Times the steps of the first training that a cheaper one takes for the same compute: beyond it,
batches and bookkeeping would take longer than the network."""
RESERVED = {
    "seed": "the experiment counts the seeds; valid: its field seeds",
    "judged_on": "an experiment tells the accuracy of test images; leave it out",
}
"""Settings that are the same for all arms, with the reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """One way to train, repeated over seeds."""

    name: str
    title: str = ""
    """In tables and figures; empty: the name."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Dotted fields of the recipe, as `vitlab train --set` takes them."""
    against: tuple[str, ...] = ()
    """The arms that this one is compared with."""
    series: str = ""
    """Arms of a series are joined by a line in the figure, and compared by the best of them."""
    x: float | None = None
    """Where the arm stands on the figure's horizontal axis."""
    budget: float = 1.0
    """Part of the experiment's budget, or a multiple of it."""
    share: float = 1.0
    """Part of the training images that it learns from, as many of each class: of the smallest."""
    how: Literal["train", "pretrain", "tune", "test"] = "train"
    """Train anew, with labels or without; fine-tune or judge as it is what `start` came to."""
    objective: Literal["", "masked-patch", "mae"] = ""
    """For `pretrain`: what is learnt without labels."""
    once: bool = False
    """With the first seed alone; every seed of an arm that starts from it takes that one."""
    start: str = ""
    """The arm whose model of the same seed `tune` and `test` take."""
    weights: Literal["learnt", "fresh"] = "learnt"
    """For `tune`: those of `start`, or of its model before it learnt anything, by the seed."""
    new_head: bool = False
    """For `tune`: every class starts at zero, also those that `start` knows."""
    image_size: int = 0
    """For `tune` and `test`, the size of the images; 0: that of `start`."""
    positions: Literal["resized", "fresh"] = "resized"
    """For `tune` and `test`: learned positions fitted to the new grid, or begun anew."""

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ConfigError(
                f"arm {self.name!r}: a name has letters, digits, dots, lines and underscores alone"
            )
        if not 0 < self.budget < math.inf:
            raise ConfigError(f"arm {self.name!r}: budget {self.budget} is not a positive number")
        if not 0 < self.share <= 1:
            raise ConfigError(f"arm {self.name!r}: share {self.share} is not in (0, 1]")
        if self.image_size < 0:
            raise ConfigError(f"arm {self.name!r}: image_size {self.image_size} is negative")
        anew = self.how in ("train", "pretrain")
        if anew == bool(self.start):
            need = "has no start" if self.start else "needs a start: the arm that it begins with"
            raise ConfigError(f"arm {self.name!r}: how {self.how!r} {need}")
        if (self.how == "pretrain") != bool(self.objective):
            need = "has no objective" if self.objective else "needs an objective"
            raise ConfigError(f"arm {self.name!r}: how {self.how!r} {need}")
        if self.how != "tune" and (self.new_head or self.weights == "fresh"):
            raise ConfigError(f"arm {self.name!r}: new_head and weights are for how 'tune'")
        if anew and (self.image_size or self.positions == "fresh"):
            raise ConfigError(
                f"arm {self.name!r}: image_size and positions are for how 'tune' and 'test'; "
                f"valid: changes, such as model.image_size"
            )
        _check_changes(self)

    @property
    def shown(self) -> str:
        """What a reader sees."""
        return self.title or self.name


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """What the figure's horizontal axis is."""

    title: str = ""
    log: bool = False
    of: Literal["x", "compute"] = "x"
    """Where an arm stands: its `x`, or the training compute that it spent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gain:
    """Whether one thing brings more to some arm than to another: a difference of differences."""

    of: tuple[str, str]
    """An arm with it and one without."""
    beside: tuple[str, str]
    """The same of what it is compared with."""

    def __post_init__(self) -> None:
        names = self.of + self.beside
        if len(set(names)) < len(names):
            raise ConfigError(f"a gain of {', '.join(names)}; valid: four different arms")


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """A question, and the trainings that answer it."""

    name: str
    title: str
    arms: tuple[Arm, ...]
    question: str = ""
    paper: str = ""
    """What others found, in a few sentences."""
    recipe: str = "default"
    changes: dict[str, Any] = field(default_factory=dict)
    """Of every arm, before its own."""
    minutes: float | None = None
    """Of one training; None: the recipe's budget."""
    matched: Literal["minutes", "steps", "compute"] = "minutes"
    """What all arms have alike: the minutes, or the steps or FLOPs that these buy the first one."""
    seeds: int = 3
    margin: float = 0.01
    """Arms are called equal where the whole interval of their difference is within this."""
    measure: Literal["accuracy", "few-shot"] = "accuracy"
    """Of all test images; or of classes that were not learnt, by 5 images and fixed features."""
    probes: tuple[Literal["gradients", "cost", "fit"], ...] = ()
    """What else is measured: gradients of the blocks, time and memory of an update, and `fit`,
    the accuracy on images that were learnt from."""
    gains: tuple[Gain, ...] = ()
    """What is compared besides."""
    choose: str = ""
    """The series with which the others are compared, each by its best arm on held-out images."""
    axis: Axis = field(default_factory=Axis)

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ConfigError(f"experiment {self.name!r}: a name has letters, digits and .-_ alone")
        if not self.arms:
            raise ConfigError(f"experiment {self.name!r} has no arms")
        repeated = [name for name, count in Counter(a.name for a in self.arms).items() if count > 1]
        if repeated:
            raise ConfigError(f"experiment {self.name!r} has several arms {repeated[0]!r}")
        if self.seeds < 1:
            raise ConfigError(f"seeds {self.seeds} is not at least 1")
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise ConfigError(f"minutes {self.minutes} is not a positive number")
        if not 0 <= self.margin < 1:
            raise ConfigError(f"margin {self.margin} is not a share from 0 to 1")
        if self.matched != "minutes" and self.arms[0].budget < 1:
            raise ConfigError(
                f"arm {self.arms[0].name!r} is the first, whose budget decides the "
                f"{self.matched} of all, and has {self.arms[0].budget:g} of it; valid: 1 or more"
            )
        _check_budgets(self)
        _check_references(self)

    def trainings(self, seeds: int) -> list[tuple[Arm, int]]:
        """Every arm with every seed that it is trained with, one seed after the other."""
        return [
            (arm, seed) for seed in range(seeds) for arm in self.arms if not (arm.once and seed)
        ]

    def only(self, names: Sequence[str]) -> "Experiment":
        """The experiment with these arms, those that they start from, and the first.

        The first decides what the others get, so that parts of an experiment can be put together.
        """
        for name in names:
            if name not in self.by_name:
                raise UnknownName("arm", name, self.by_name)
        kept = {self.arms[0].name, *names}
        for arm in reversed(self.arms):  # a start stands before what it is for
            if arm.name in kept and arm.start:
                kept.add(arm.start)
        arms = tuple(
            replace(arm, against=tuple(other for other in arm.against if other in kept))
            for arm in self.arms
            if arm.name in kept
        )
        choose = self.choose if any(arm.series == self.choose for arm in arms) else ""
        gains = tuple(gain for gain in self.gains if kept.issuperset(gain.of + gain.beside))
        return replace(self, arms=arms, choose=choose, gains=gains)

    def arm(self, name: str) -> Arm:
        """The arm of a name."""
        return self.by_name[name]

    @property
    def by_name(self) -> Mapping[str, Arm]:
        """Every arm, in order."""
        return {arm.name: arm for arm in self.arms}

    @property
    def series(self) -> dict[str, list[Arm]]:
        """The arms of each series, in order; those of none are not in it."""
        found: dict[str, list[Arm]] = {}
        for arm in self.arms:
            if arm.series:
                found.setdefault(arm.series, []).append(arm)
        return found


def _check_changes(arm: Arm) -> None:
    """Refuse what would be ignored."""
    if arm.how == "test" and (arm.changes or arm.share != 1 or arm.budget != 1):
        raise ConfigError(
            f"arm {arm.name!r}: how 'test' trains nothing; leave out changes, share and budget"
        )
    reasons = dict(RESERVED)
    if arm.start:
        reasons["model"] = f"the weights of {arm.start!r} decide it; leave it out"
    if arm.share != 1:
        reasons["images_per_class"] = "share says it too; valid: one of them"
    if arm.changes.get("precision") == "auto":
        reasons["precision"] = "'auto' is settled for all arms alike; valid: one of the others"
    for key, reason in reasons.items():
        if key in arm.changes:
            raise ConfigError(f"arm {arm.name!r}: {key} in changes, but {reason}")


def _check_budgets(experiment: Experiment) -> None:
    """Refuse changes that something else decides for all arms."""
    name, keys = experiment.name, {"budget", "budget_in"}
    for key, reason in RESERVED.items():
        if key in experiment.changes:
            raise ConfigError(f"experiment {name!r}: {key} in changes, but {reason}")
    if experiment.minutes is not None and keys & experiment.changes.keys():
        raise ConfigError(f"experiment {name!r}: budget in changes, but its minutes decide it")
    shared = [arm.name for arm in experiment.arms if arm.share != 1]
    if shared and "images_per_class" in experiment.changes:
        raise ConfigError(
            f"experiment {name!r}: images_per_class in changes, and share of arm {shared[0]!r} "
            f"says it too; valid: one of them"
        )
    anchored = experiment.matched != "minutes"
    for arm in experiment.arms:
        first = arm == experiment.arms[0]
        if keys & arm.changes.keys() and (experiment.minutes or (anchored and not first)):
            by = "minutes decide" if experiment.minutes else "first arm decides"
            raise ConfigError(
                f"arm {arm.name!r}: budget in changes, but the experiment's {by} it; valid: the "
                f"arm's own field budget"
            )


def _check_references(experiment: Experiment) -> None:
    known: list[str] = []
    for arm in experiment.arms:
        others = [name for name in experiment.by_name if name != arm.name]
        for other in arm.against:
            if other not in others:
                raise UnknownName(f"arm that {arm.name!r} is against", other, others)
        if arm.start and arm.start not in known:
            raise UnknownName(
                f"start of arm {arm.name!r}, which must stand before it", arm.start, known
            )
        if arm.start and experiment.by_name[arm.start].how == "test":
            raise ConfigError(f"arm {arm.name!r}: {arm.start!r} trains nothing to start with")
        if arm.how == "test" and experiment.measure != "accuracy":
            raise ConfigError(
                f"arm {arm.name!r}: how 'test' tells the accuracy, not {experiment.measure}; "
                f"valid: train, pretrain, tune"
            )
        if arm.how == "test" and experiment.by_name[arm.start].how == "pretrain":
            raise ConfigError(f"arm {arm.name!r}: {arm.start!r} has no head to be judged by")
        if arm.once and any(arm.name in other.against for other in experiment.arms):
            raise ConfigError(f"arm {arm.name!r} is trained once: nothing is compared with it")
        known.append(arm.name)
    for gain in experiment.gains:
        for name in gain.of + gain.beside:
            if name not in known:
                raise UnknownName("arm of a gain", name, known)
    _check_compared(experiment)
    if experiment.choose and experiment.choose not in experiment.series:
        raise UnknownName("series to choose", experiment.choose, experiment.series)


def _check_compared(experiment: Experiment) -> None:
    """What has no accuracy can be compared with nothing."""
    pairs = [(arm.name, *arm.against) for arm in experiment.arms if arm.against]
    for names in (*pairs, *(gain.of + gain.beside for gain in experiment.gains)):
        for name in names:
            if experiment.measure == "accuracy" and experiment.arm(name).how == "pretrain":
                raise ConfigError(
                    f"arm {name!r} is compared, but learns without labels and tells no classes; "
                    f"valid: an arm that is fine-tuned from it"
                )
