"""Names for parts and models, open to users: `vitlab.register("stem", "mine", factory)`."""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, TypeVar, overload

from vitlab.errors import ConfigError, UnknownName

T = TypeVar("T")


class Registry:
    """Names of one kind; built-in entries are `module:attribute` strings, imported when used."""

    def __init__(self, kind: str, entries: dict[str, Any], *, reserved: str | None = None) -> None:
        """`reserved` is a `module:function` that returns the other built-in names."""
        self.kind = kind
        self._builtin = frozenset(entries)
        self._entries = dict(entries)
        self._reserved = reserved

    def __getitem__(self, name: str) -> Any:
        if name not in self._entries:
            raise UnknownName(self.kind, name, self)
        return resolve_entry(self._entries[name])

    def __setitem__(self, name: str, entry: Any) -> None:
        if name in self._builtin or (self._reserved and resolve_entry(self._reserved)(name)):
            raise ConfigError(f"{self.kind} {name!r} is built in; choose another name")
        self._entries[name] = entry

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def resolve_entry(entry: Any) -> Any:
    """Import a `module:attribute` string; any other entry is returned as it is."""
    if not isinstance(entry, str):
        return entry
    module, _, attribute = entry.partition(":")
    return getattr(import_module(module), attribute)


STEMS = Registry(
    "stem",
    {
        "patch": "vitlab.models.parts:patch_stem",
        "resnet": "vitlab.models.parts:resnet_stem",
        "conv": "vitlab.models.parts:conv_stem",
        "shifted": "vitlab.models.parts:shifted_stem",
    },
)
POSITIONS = Registry(
    "position",
    {
        "none": "vitlab.models.parts:no_position",
        "learned1d": "vitlab.models.parts:learned1d_position",
        "learned2d": "vitlab.models.parts:learned2d_position",
        "relative": "vitlab.models.parts:no_position",
        "relative_bias": "vitlab.models.parts:no_position",
        "sincos2d": "vitlab.models.parts:sincos2d_position",
        "rope": "vitlab.models.parts:no_position",
        "conditional": "vitlab.models.parts:conditional_position",
    },
)
ATTENTIONS = Registry(
    "attention",
    {
        "full": "vitlab.models.parts:full_attention",
        "lsa": "vitlab.models.parts:lsa_attention",
        "sliding": "vitlab.models.parts:sliding_attention",
        "axial": "vitlab.models.parts:axial_attention",
        "sparse": "vitlab.models.parts:sparse_attention",
        "mean": "vitlab.models.parts:mean_attention",
    },
)
VARIANTS = Registry("variant", {}, reserved="vitlab.models.variants:built_in")
DATASETS = Registry(
    "dataset",
    {
        "sample": "vitlab.data.sources.sample:SAMPLE",
        "digits": "vitlab.data.sources.digits:DIGITS",
        "cifar10": "vitlab.data.sources.cifar:CIFAR10",
        "cifar100": "vitlab.data.sources.cifar:CIFAR100",
        "fashion-mnist": "vitlab.data.sources.fashion:FASHION_MNIST",
    },
)
RECIPES = Registry(
    "recipe",
    {
        "cifar10_30min": "vitlab.training.recipes.from_scratch:cifar10_30min",
        "cifar10_best": "vitlab.training.recipes.from_scratch:cifar10_best",
        "cifar10_plain": "vitlab.training.recipes.from_scratch:cifar10_plain",
        "cifar10_pure": "vitlab.training.recipes.from_scratch:cifar10_pure",
        "default": "vitlab.training.recipes.from_scratch:default",
        "demo": "vitlab.training.recipes.from_scratch:demo",
        "seed": "vitlab.training.recipes.from_scratch:seed",
    },
)
OBJECTIVES = Registry(
    "objective",
    {
        "single-label": "vitlab.objectives.objective:SINGLE_LABEL",
        "multi-label": "vitlab.objectives.objective:MULTI_LABEL",
        "regression": "vitlab.objectives.objective:REGRESSION",
    },
)
LOGGERS = Registry(
    "logger",
    {
        "tensorboard": "vitlab.training.loggers:TensorBoard",
        "wandb": "vitlab.training.loggers:Wandb",
        "mlflow": "vitlab.training.loggers:Mlflow",
    },
)

REGISTRIES = {
    registry.kind: registry
    for registry in (
        *(STEMS, POSITIONS, ATTENTIONS, VARIANTS),
        *(DATASETS, RECIPES, OBJECTIVES, LOGGERS),
    )
}


@overload
def register(kind: str, name: str) -> Callable[[T], T]: ...
@overload
def register(kind: str, name: str, entry: T) -> T: ...
def register(kind: str, name: str, entry: Any = None) -> Any:
    """Give a part or model of yours a name, directly or as a decorator."""
    if kind not in REGISTRIES:
        raise UnknownName("kind of entry", kind, REGISTRIES)
    if entry is None:
        return lambda decorated: register(kind, name, decorated)
    REGISTRIES[kind][name] = entry
    return entry
