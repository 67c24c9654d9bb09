"""The Vision Transformer, whole; public names are imported when first used, torch with them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitlab.classify.classifier import Classifier as Classifier
    from vitlab.classify.classifier import load as load
    from vitlab.errors import VitlabError as VitlabError
    from vitlab.experiments.run import experiment as experiment
    from vitlab.images.preprocessing import Preprocessing as Preprocessing
    from vitlab.jobs.evaluate import evaluate as evaluate
    from vitlab.jobs.export import export as export
    from vitlab.jobs.fewshot import fewshot as fewshot
    from vitlab.jobs.figures import figures as figures
    from vitlab.jobs.finetune import finetune as finetune
    from vitlab.jobs.train import pretrain as pretrain
    from vitlab.jobs.train import train as train
    from vitlab.jobs.walkthrough import walkthrough as walkthrough
    from vitlab.models.config import ViTConfig as ViTConfig
    from vitlab.models.summary import summary as summary
    from vitlab.models.variants import variants as variants
    from vitlab.models.vit import VisionTransformer as VisionTransformer
    from vitlab.nn.attention import MultiHeadAttention as MultiHeadAttention
    from vitlab.nn.attention import dot_product_attention as dot_product_attention
    from vitlab.registry import register as register
    from vitlab.weights.bundle import save_bundle as save_bundle
    from vitlab.weights.load import create_model as create_model
    from vitlab.weights.load import load_weights as load_weights
    from vitlab.weights.save import save_weights as save_weights

__version__ = "0.1.0"

_HOMES = {
    "Classifier": "vitlab.classify.classifier",
    "MultiHeadAttention": "vitlab.nn.attention",
    "Preprocessing": "vitlab.images.preprocessing",
    "ViTConfig": "vitlab.models.config",
    "VisionTransformer": "vitlab.models.vit",
    "VitlabError": "vitlab.errors",
    "create_model": "vitlab.weights.load",
    "dot_product_attention": "vitlab.nn.attention",
    "evaluate": "vitlab.jobs.evaluate",
    "experiment": "vitlab.experiments.run",
    "export": "vitlab.jobs.export",
    "fewshot": "vitlab.jobs.fewshot",
    "figures": "vitlab.jobs.figures",
    "finetune": "vitlab.jobs.finetune",
    "load": "vitlab.classify.classifier",
    "load_weights": "vitlab.weights.load",
    "pretrain": "vitlab.jobs.train",
    "register": "vitlab.registry",
    "save_bundle": "vitlab.weights.bundle",
    "save_weights": "vitlab.weights.save",
    "summary": "vitlab.models.summary",
    "train": "vitlab.jobs.train",
    "variants": "vitlab.models.variants",
    "walkthrough": "vitlab.jobs.walkthrough",
}

__all__ = sorted(["__version__", *_HOMES])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
