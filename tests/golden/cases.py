"""The golden commands: what is run, in which order, and which files of each are recorded."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    """One command of vitlab (`words`) or one function of `calls.py` (`call`)."""

    name: str
    words: tuple[str, ...] = ()
    call: str = ""
    files: tuple[str, ...] = ()
    """Patterns of the files to record; those of a run folder are in RUN."""
    needs: tuple[str, ...] = ()
    """Cases that write what this one reads."""
    stdin: str = ""
    drop: tuple[str, ...] = ()
    """Keys of the JSON output that depend on times, such as the digest of a file that holds one."""
    outline: bool = False
    """Record the keys and types of the JSON output only: its values are times."""


RUN = ("*.json", "*.jsonl", "report.html", "*.png", "checkpoints/*", "bundle/*")
FILE = ("sha256", "bytes")
TINY = "--set model=vit_test --batch-size 8 --steps 3 --json"
FANCY = (
    "--set ema=0.9 --set evaluations=3 --set augment.mixup=0.5 --set augment.cutmix=0.5 "
    "--set augment.policy=randaugment --set augment.erase=0.3 --set model.drop_path=0.1 "
    "--set model.dropout=0.1 --set optimizer.name=muon --set accumulate=2"
)
FORMATS = {
    "google": "npz",
    "timm": "safetensors",
    "huggingface": "safetensors",
    "torchvision": "pth",
    "vit-pytorch": "pth",
    "vitlab": "safetensors",
}
METHODS = ("relevance", "attention", "rollout", "gradcam", "input-gradient")


def _command(name: str, line: str, *files: str, needs: str = "", **more: Any) -> Case:
    return Case(name, tuple(line.split()), files=files, needs=tuple(needs.split()), **more)


def _run(name: str, line: str, *, needs: str = "") -> Case:
    """A command that writes the run folder `runs/NAME`, all of which is recorded."""
    out = f"runs/{name}"
    return _command(name, f"{line} --out {out}", *(f"{out}/{part}" for part in RUN), needs=needs)


def _mistake(name: str, line: str, *, needs: str = "") -> Case:
    return _command(f"mistake-{name}", line, needs=needs)


MODELS = (
    _command("models", "models --json"),
    _command("models-pattern", "models *cifar*"),
    _command("summary", "summary vit_b16 --json"),
    _command("summary-text", "summary cifar10 --image-size 64 --depth 2"),
    _command("weights-list", "weights list --json"),
    _command("info", "info cifar10 --json"),
    _command("info-markdown", "info cifar10 --markdown card.md", "card.md"),
    Case("public", call="public"),
    Case("options", call="options"),
    Case("forward", call="models"),
    Case("attention", call="attention"),
    Case("classifier", call="classifier"),
)
DATA = (
    _command("data-list", "data list --json"),
    _command("data-check", "data check messy --contact-sheet check.png --json", "check.png"),
    _command("data-check-strict", "data check messy --strict"),
)
PREDICT = (
    _command("predict", "predict cifar10 a.png --engine torch --json"),
    _command("predict-text", "predict cifar10 a.png messy --engine torch --top 2"),
    _command("predict-auto", "predict cifar10 photos --json"),
    _command("predict-onnxruntime", "predict cifar10 photos --engine onnxruntime --json"),
    _command("predict-csv", "predict cifar10 messy --engine torch --output p.csv --json", "p.csv"),
    _command(
        "predict-jsonl",
        "predict cifar10 photos/*/0?.png --engine torch --output p.jsonl --contact-sheet p.png",
        *("p.jsonl", "p.png"),
    ),
    _command(
        "predict-stdin",
        "predict cifar10 - --engine torch --json",
        stdin="a.png\nphotos/left/01.png\n",
    ),
)
TRAIN = (
    _run("digits", "train --data digits --steps 2 --json"),
    _run("folder", f"train --data photos {TINY} {FANCY}"),
    _run("single", f"train --data single.csv {TINY} --seed 3 --balance loss"),
    _run("multi", f"train --data multi.csv {TINY} --balance sampling"),
    _run("values", f"train --data values.csv {TINY}"),
    _run("mae", f"pretrain --data photos --objective mae {TINY}"),
    _run("masked-patch", f"pretrain --data photos --objective masked-patch {TINY}"),
    _command("resume-finished", "train --out runs/folder --resume --json", needs="folder"),
)
FINETUNE = (
    _run("finetune", "finetune --from cifar10 --data photos --steps 2 --batch-size 8 --json"),
    _run("after-mae", "finetune --from runs/mae --data photos --steps 2 --json", needs="mae"),
    _run(
        "lora",
        "finetune --from runs/folder --data photos --steps 2 --lora 2 --new-head --json",
        needs="folder",
    ),
    _run(
        "probe",
        "finetune --from runs/folder --data values.csv --steps 2 --linear-probe --json",
        needs="folder",
    ),
    _run(
        "paper",
        "finetune --from runs/folder --data photos --steps 2 --paper --batch-size 16 "
        "--image-size 48 --json",
        needs="folder",
    ),
    _run(
        "teacher",
        "finetune --from runs/folder --data photos --steps 2 --teacher runs/single --sam 0.05 "
        "--freeze 1 --json",
        needs="folder single",
    ),
    _run(
        "find-lr", "finetune --from runs/folder --data photos --steps 2 --find-lr", needs="folder"
    ),
)
EVALUATE = (
    _command(
        "evaluate",
        "evaluate cifar10 --data sample --temperature --engine torch --output e.html --json",
        "e.html",
    ),
    *(
        _command(
            f"evaluate-{run}",
            f"evaluate runs/{run} --data {data} --output {run}.html --json",
            f"{run}.html",
            needs=run,
        )
        for run, data in (("multi", "multi.csv"), ("values", "values.csv"))
    ),
    _command(
        "evaluate-flip",
        "evaluate runs/folder --data photos --flip --split validation --merge-tokens 1 --json",
        needs="folder",
    ),
    _command("evaluate-text", "evaluate runs/folder --data photos", needs="folder"),
    _command("predict-multi", "predict runs/multi photos --threshold 0.4 --json", needs="multi"),
    _command(
        "predict-values", "predict runs/values photos --output v.csv", "v.csv", needs="values"
    ),
    _command(
        "predict-merged", "predict runs/folder photos --merge-tokens 2 --json", needs="folder"
    ),
    _command("info-run", "info runs/values --json", needs="values", drop=FILE),
    _command(
        "fewshot",
        "fewshot cifar10 --data photos --shots 1,3 --draws 2 --plot few.png --json",
        "few.png",
    ),
)
FEATURES = (
    _command("features", "features cifar10 photos --output f.npz --json", "f.npz"),
    _command(
        "features-patches",
        "features cifar10 messy --output g.npz --kind patches --layer 1 --image-size 48 --json",
        "g.npz",
    ),
    _command("similar", "similar f.npz a.png --top 4 --json", needs="features"),
)
EXPLAIN = (
    *(
        _command(
            f"explain-{method}",
            f"explain cifar10 a.png --method {method} --output x-{method}.png --json",
            f"x-{method}.png",
        )
        for method in METHODS
    ),
    _command(
        "explain-heads",
        "explain cifar10 a.png --method attention --each head --token 1,2 --output h.png --json",
        "h.png",
    ),
    _command(
        "explain-faithfulness",
        "explain runs/folder photos --faithfulness --images 4 --steps 3 --output y.png --json",
        "y.png",
        needs="folder",
    ),
    _command(
        "figures",
        "figures runs/folder --data photos --images 6 --output figures --json",
        "figures/*",
        needs="folder",
    ),
    _command("walkthrough", "walkthrough a.png --output w.html --json", "w.html"),
    _command(
        "walkthrough-cifar10",
        "walkthrough sample/test/17 --model cifar10 --layer 1 --head 2 --output v.html --json",
        "v.html",
    ),
)
WEIGHTS = (
    Case("plain", call="make_weights", files=("from-*.safetensors",)),
    *(
        _command(
            f"convert-{layout}",
            f"convert from-{layout}.safetensors to-{layout}.{ending} --format {layout} --json",
            f"to-{layout}.{ending}",
            needs="plain",
        )
        for layout, ending in FORMATS.items()
    ),
    *(
        _command(
            f"convert-back-{layout}",
            f"convert to-{layout}.{ending} back-{layout}.safetensors --format vitlab --heads 2 "
            "--json",
            f"back-{layout}.safetensors",
            needs=f"plain convert-{layout}",
        )
        for layout, ending in FORMATS.items()
    ),
    _command(
        "convert-resized",
        "convert from-google.safetensors resized.npz --format google --image-size 48 --classes 3 "
        "--json",
        "resized.npz",
        needs="plain",
    ),
    _command(
        "export",
        "export runs/folder --output exported.onnx --json",
        "exported.onnx",
        needs="folder",
        drop=(*FILE, "weights"),
    ),
    Case("export-outputs", call="onnx", needs=("folder", "export")),
    _command("predict-exported", "predict exported.onnx photos --json", needs="folder export"),
    _command(
        "export-torch",
        "export runs/folder --output exported.pt2 --format torch-export --json",
        "exported.pt2",
        needs="folder",
        drop=(*FILE, "weights"),
    ),
)
STUDIES = (
    _command(
        "experiment",
        "experiment position --smoke --arms 1d,none --out study --json",
        *("study/*.json", "study/*.csv", "study/report.html", "study/*.png"),
    ),
    _command(
        "benchmark",
        "benchmark vit_test --engines torch --batch 1 --rounds 1 --seconds 0.01 --json",
        outline=True,
    ),
    _run("demo", "demo --steps 2 --json"),
)
MISTAKES = (
    _mistake("command", "predct cifar10 a.png"),
    _mistake("option", "predict cifar10 a.png --tpo 3"),
    _mistake("no-model", "predict"),
    _mistake("model", "predict cifar01 a.png"),
    _mistake("image", "predict cifar10 missing.png"),
    _mistake("broken-image", "predict cifar10 not-an-image.png"),
    _mistake("ending", "predict cifar10 a.png --output p.txt"),
    _mistake("engine", "predict cifar10 a.png --engine tensorrt"),
    _mistake("no-data", "train --out runs/none"),
    _mistake("data", "train --data sampel --out runs/none"),
    _mistake("recipe", "train defalt --data digits --out runs/none"),
    _mistake("field", "train --data digits --out runs/none --set lable_smoothing=0.1"),
    _mistake("value", "train --data digits --out runs/none --set label_smoothing=much"),
    _mistake("range", "train --data digits --out runs/none --set model.depth=-1"),
    _mistake("heads", "train --data digits --out runs/none --set model.heads=7"),
    _mistake("budgets", "train --data digits --out runs/none --steps 2 --epochs 1"),
    _mistake("resume", "train --out runs/none --resume"),
    _mistake("folder-in-use", "train --data digits --out runs/folder", needs="folder"),
    _mistake("split", "evaluate cifar10 --data sample --split tset"),
    _mistake("other-labels", "evaluate cifar10 --data photos"),
    _mistake("no-output", "explain cifar10 a.png"),
    _mistake("merged", "predict cifar10 a.png --merge-tokens 4"),
    _mistake("method", "explain cifar10 a.png --method gradcm --json"),
    _mistake("class", "explain cifar10 a.png --class catt --json"),
    _mistake("layer", "explain cifar10 a.png --method attention --layer 99 --json"),
    _mistake("format", "convert cifar10 out.npz --format googel"),
    _mistake("cannot-convert", "convert cifar10 out.npz --format google"),
    _mistake("features-ending", "features cifar10 a.png --output f.txt"),
    _mistake("shots", "fewshot cifar10 --data photos --shots 1,x"),
    _mistake("too-many-shots", "fewshot cifar10 --data photos --shots 500"),
    _mistake("study", "experiment positions --out study2"),
    _mistake("token", "walkthrough a.png --token 99,0 --output t.html"),
    _mistake("summary", "summary vit_b17"),
    _mistake("image-size", "summary vit_b16 --image-size 225"),
    _mistake("repository", "pull hf:nothing"),
    _mistake("objective", "pretrain --data digits --out runs/none --objective mea"),
    _mistake("from", "finetune --from nowhere --data digits --out runs/none"),
    _mistake(
        "lora-and-probe",
        "finetune --from cifar10 --data digits --out runs/none --lora 2 --linear-probe",
    ),
)
CASES = (
    *(*MODELS, *DATA, *PREDICT, *TRAIN, *FINETUNE),
    *(*EVALUATE, *FEATURES, *EXPLAIN, *WEIGHTS, *STUDIES, *MISTAKES),
)


def chosen(names: list[str]) -> list[Case]:
    """The named cases and those they need, in order; all of them without names."""
    known = {case.name: case for case in CASES}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"error: no case {unknown[0]!r}; valid: {', '.join(known)}")
    wanted, waiting = set[str](), list(names or known)
    while waiting:
        name = waiting.pop()
        wanted.add(name)
        waiting += [need for need in known[name].needs if need not in wanted]
    return [case for case in CASES if case.name in wanted]
