"""An experiment as data: arms that differ from a base recipe, and their comparisons."""

import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from vitlab.config import flat, from_dict, parse_toml
from vitlab.errors import ConfigError, UnknownName, VitlabError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""Pattern of an arm's name, which is also the name of its folder."""
MOST_STEPS = 8
"""Maximum steps of a cheaper arm at equal compute, in multiples of the first arm's: beyond it,
batches and bookkeeping would take longer than the network."""
RESERVED = {
    "seed": "the experiment counts the seeds; valid: its field seeds",
    "judged_on": "an experiment reports the accuracy on test images; leave it out",
}
"""Settings that are the same for all arms, with the reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """One way to train, repeated over seeds."""

    name: str
    title: str = ""
    """Title in tables and figures; empty: the name."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Dotted fields of the recipe, as `vitlab train --set` takes them."""
    against: tuple[str, ...] = ()
    """The arms that this one is compared with."""
    series: str = ""
    """Arms of a series are joined by a line in the figure, and compared by the best of them."""
    x: float | None = None
    """Position on the horizontal axis of the figure."""
    budget: float = 1.0
    """Part of the experiment's budget, or a multiple of it."""
    share: float = 1.0
    """Share of the training images: the same number per class, a share of the smallest class."""
    how: Literal["train", "pretrain", "tune", "test"] = "train"
    """Train from scratch with or without labels; fine-tune or evaluate the model of `start`."""
    objective: Literal["", "masked-patch", "mae"] = ""
    """For `pretrain`: the objective without labels."""
    once: bool = False
    """Train with the first seed only; all seeds of an arm that starts from this one share it."""
    start: str = ""
    """For `tune` and `test`: the arm whose model of the same seed is used."""
    weights: Literal["learnt", "fresh"] = "learnt"
    """For `tune`: the trained weights of `start`, or its random initialisation by the seed."""
    new_head: bool = False
    """For `tune`: reset the head to zeros, also for classes of `start`."""
    image_size: int = 0
    """For `tune` and `test`, the size of the images; 0: that of `start`."""
    positions: Literal["resized", "fresh"] = "resized"
    """For `tune` and `test`: resize learned positions to the new grid, or initialise them anew."""

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
        """Title, or the name without one."""
        return self.title or self.name


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """Horizontal axis of the figure."""

    title: str = ""
    log: bool = False
    of: Literal["x", "compute"] = "x"
    """Position of an arm: its `x`, or its training compute."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gain:
    """A difference of differences: the gain of one pair of arms beside that of another pair."""

    of: tuple[str, str]
    """An arm with the change and one without."""
    beside: tuple[str, str]
    """The pair that the gain is compared with."""

    def __post_init__(self) -> None:
        names = self.of + self.beside
        if len(set(names)) < len(names):
            raise ConfigError(f"a gain of {', '.join(names)}; valid: four different arms")


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """A question and the arms that answer it."""

    name: str
    title: str
    arms: tuple[Arm, ...]
    question: str = ""
    paper: str = ""
    """Published findings, in a few sentences."""
    recipe: str = "default"
    changes: dict[str, Any] = field(default_factory=dict)
    """Changes of the recipe for every arm, applied before its own."""
    minutes: float | None = None
    """Minutes per training; None: the recipe's budget."""
    matched: Literal["minutes", "steps", "compute"] = "minutes"
    """Quantity equal for all arms: minutes, or the steps or FLOPs of the first arm."""
    seeds: int = 3
    margin: float = 0.01
    """Arms count as equal if the whole interval of their difference is within this margin."""
    measure: Literal["accuracy", "few-shot"] = "accuracy"
    """Accuracy on all test images, or 5-shot accuracy on classes not seen in training."""
    probes: tuple[Literal["gradients", "cost", "fit"], ...] = ()
    """Additional measurements: gradients of the blocks, time and memory of an update, and `fit`,
    the accuracy on training images."""
    gains: tuple[Gain, ...] = ()
    """Additional comparisons."""
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
        """Pairs of arm and seed to train, seed by seed."""
        return [
            (arm, seed) for seed in range(seeds) for arm in self.arms if not (arm.once and seed)
        ]

    def only(self, names: Sequence[str]) -> "Experiment":
        """The experiment with these arms, those that they start from, and the first.

        The first arm sets the budget of the others, so that parts of an experiment can be combined.
        """
        for name in names:
            if name not in self.by_name:
                raise UnknownName("arm", name, self.by_name)
        kept = {self.arms[0].name, *names}
        for arm in reversed(self.arms):  # a start precedes the arms that use it
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
        """The arms of each series, in order; arms without a series are left out."""
        found: dict[str, list[Arm]] = {}
        for arm in self.arms:
            if arm.series:
                found.setdefault(arm.series, []).append(arm)
        return found


def _check_changes(arm: Arm) -> None:
    """Raise for settings that would be ignored."""
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
        reasons["precision"] = "'auto' is decided for all arms alike; valid: one of the others"
    for key, reason in reasons.items():
        if key in arm.changes:
            raise ConfigError(f"arm {arm.name!r}: {key} in changes, but {reason}")


def _check_budgets(experiment: Experiment) -> None:
    """Raise for changes that are set for all arms elsewhere."""
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
                f"arm {arm.name!r}: how 'test' measures the accuracy, not {experiment.measure}; "
                f"valid: train, pretrain, tune"
            )
        if arm.how == "test" and experiment.by_name[arm.start].how == "pretrain":
            raise ConfigError(f"arm {arm.name!r}: {arm.start!r} has no head to evaluate")
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
    """Raise if an arm without accuracy is compared."""
    pairs = [(arm.name, *arm.against) for arm in experiment.arms if arm.against]
    for names in (*pairs, *(gain.of + gain.beside for gain in experiment.gains)):
        for name in names:
            if experiment.measure == "accuracy" and experiment.arm(name).how == "pretrain":
                raise ConfigError(
                    f"arm {name!r} is compared, but learns without labels and predicts no classes; "
                    f"valid: an arm that is fine-tuned from it"
                )


# Experiments by name or from a TOML file: those of `studies/` are files like a user's own.


STUDIES = Path(__file__).with_name("studies")
NAMES = (
    *("position", "class-token", "cnn-vs-vit", "data-size", "compute", "few-shot", "small-data"),
    *("norm-placement", "shape", "resolution", "attention-kind", "pretraining"),
)
"""The bundled experiments in the order of the documentation."""


def named(name: str) -> Experiment:
    """Read the bundled experiment of a name."""
    if name not in NAMES:
        raise UnknownName("experiment", name, NAMES)
    return read(STUDIES / f"{name}.toml")


def find(what: str | os.PathLike[str] | Experiment) -> Experiment:
    """Return the experiment of a name, or of a file whose name ends in .toml."""
    if isinstance(what, Experiment):
        return what
    text = os.fspath(what)
    if text in NAMES or not text.endswith(".toml"):
        return named(text)
    return read(Path(text))


def read(path: Path) -> Experiment:
    """Read the experiment in a file; its name is the file's unless it has a field `name`."""
    try:
        content = parse_toml(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
    try:
        return from_dict(Experiment, {"name": path.stem, "title": path.stem, **_expanded(content)})
    except VitlabError as error:
        raise ConfigError(f"{path}: {error}") from error


def _expanded(content: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an Experiment: presets filled into the arms that name them."""
    found = _with_flat_changes(content)
    presets = found.pop("presets", {})
    if not (isinstance(presets, Mapping) and all(isinstance(p, Mapping) for p in presets.values())):
        raise ConfigError("presets is not a table of tables; valid: [presets.NAME], then changes")
    if isinstance(found.get("arms"), list):
        found["arms"] = [
            _with_preset(_with_flat_changes(arm), presets) if isinstance(arm, Mapping) else arm
            for arm in found["arms"]
        ]
    return found


def _with_preset(arm: dict[str, Any], presets: Mapping[str, Any]) -> dict[str, Any]:
    """The arm with the changes of its preset before its own."""
    if "preset" not in arm:
        return arm
    name, own = arm.pop("preset"), arm.get("changes", {})
    if not isinstance(own, Mapping):
        return arm  # refused later, with the type that is expected
    if name not in list(presets):
        raise UnknownName(f"preset of arm {arm.get('name')!r}", str(name), presets)
    return {**arm, "changes": {**dict(flat(presets[name])), **own}}


def _with_flat_changes(content: Mapping[str, Any]) -> dict[str, Any]:
    """Tables inside `changes` as dotted keys: TOML writes `optimizer.lr = 1` as a table."""
    found = dict(content)
    if isinstance(found.get("changes"), Mapping):
        found["changes"] = dict(flat(found["changes"]))
    return found
