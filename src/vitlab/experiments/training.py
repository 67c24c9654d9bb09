"""One arm with one seed: trained, fine-tuned or judged, and what it came to."""

import shutil
from dataclasses import replace
from pathlib import Path

from vitlab.errors import ConfigError
from vitlab.evaluation.classification import Evaluation
from vitlab.experiments.context import Lab
from vitlab.experiments.probes import probe
from vitlab.experiments.result import Result, pack, read_result, write_result
from vitlab.experiments.spec import Arm
from vitlab.experiments.start import LEARNT, OTHERS, SHOTS, judge_at, start_at
from vitlab.jobs.fewshot import fewshot
from vitlab.jobs.finetune import finetune
from vitlab.jobs.pretrain import pretrain
from vitlab.jobs.run import Watcher, model_config
from vitlab.jobs.run_folder import Plan, plan_path, read_plan
from vitlab.jobs.run_result import Run
from vitlab.jobs.train import train
from vitlab.models.cost import cost
from vitlab.training.loop import RunFiles
from vitlab.weights.bundle_files import WEIGHTS

DRAWS, SMOKE_DRAWS = 10, 2
"""How often the few images are drawn."""


def complete(lab: Lab, arm: Arm, seed: int, watcher: Watcher) -> Result:
    """Do what is left of one training; finished, it is not repeated."""
    place = lab.place(arm.name, seed)
    known = read_result(place)
    if known is not None:
        return known
    learn = {"test": _test, "pretrain": _pretrain}.get(arm.how, _learn)
    result = learn(lab, arm, seed, watcher)
    write_result(place, result)
    drop_checkpoints(place)
    return result


def drop_checkpoints(place: Path) -> None:
    """What has a result is not continued."""
    shutil.rmtree(place / "checkpoints", ignore_errors=True)


def _learn(lab: Lab, arm: Arm, seed: int, watcher: Watcher) -> Result:
    run = _run(lab, arm, seed, watcher)
    assert isinstance(run.evaluation, Evaluation)
    found = replace(
        _spent(arm, seed, run),
        value=run.evaluation.accuracy,
        held_out=_held_out(run),
        images=run.evaluation.images,
        right=pack(run.right or ()),
    )
    if lab.experiment.measure == "few-shot":
        found = _few_shot(lab, found, run.folder)
    return replace(found, probes=probe(lab.experiment.probes, run.folder, lab.source, lab.smoke))


def _held_out(run: Run) -> float | None:
    """What the run was chosen by: the accuracy, or with balanced classes their mean."""
    names = ("validation_balanced", "validation_accuracy")
    return next((run.metrics[name] for name in names if name in run.metrics), None)


def _pretrain(lab: Lab, arm: Arm, seed: int, watcher: Watcher) -> Result:
    """What is learnt without labels has no accuracy of its own, but features that may be judged."""
    run = _run(lab, arm, seed, watcher)
    found = _spent(arm, seed, run)
    return _few_shot(lab, found, run.folder) if lab.experiment.measure == "few-shot" else found


def _spent(arm: Arm, seed: int, run: Run) -> Result:
    """What a training took."""
    size = cost(model_config(read_plan(run.folder)))
    return Result(
        arm=arm.name,
        seed=seed,
        value=None,
        held_out=None,
        images=0,
        parameters=size.parameters,
        forward=size.flops,
        steps=run.compute.steps,
        images_seen=run.compute.images,
        pflops=run.compute.flops / 1e15,
        minutes=run.compute.seconds / 60,
    )


def _run(lab: Lab, arm: Arm, seed: int, watcher: Watcher) -> Run:
    """The training, begun or continued."""
    place = lab.place(arm.name, seed)

    def begin(plan: Plan, files: RunFiles) -> None:
        lab.drop_anchor(arm, plan)
        watcher.begin(plan, files)

    told = replace(watcher, begin=begin)
    if plan_path(place).is_file():
        return train(out=place, resume=True, watcher=told)
    settings = lab.settings(arm, seed)
    settings |= lab.budget(arm, settings)
    if arm.how == "train":
        data = _data(lab)
        return train(lab.experiment.recipe, data=data, out=place, changes=settings, watcher=told)
    if arm.how == "pretrain":
        data = _data(lab)
        return pretrain(arm.objective, data=data, out=place, changes=settings, watcher=told)
    start = start_at(_start(lab, arm, seed), arm, seed, lab.folder / "starts" / arm.name)
    return finetune(
        start,
        data=_data(lab),
        out=place,
        image_size=arm.image_size or None,
        new_head=arm.new_head,
        changes=settings,
        watcher=told,
    )


def _data(lab: Lab) -> str:
    return f"{lab.data}{LEARNT}" if lab.experiment.measure == "few-shot" else lab.data


def _start(lab: Lab, arm: Arm, seed: int) -> Path:
    """The run that an arm starts from."""
    own = 0 if lab.experiment.arm(arm.start).once else seed
    place = lab.place(arm.start, own)
    if read_result(place) is None:
        raise ConfigError(f"it starts from {arm.start}, seed {own}, which has no result")
    if not (place / "bundle" / WEIGHTS).is_file():
        raise ConfigError(
            f"it starts from {arm.start}, seed {own}, whose weights are not here; copy its bundle "
            f"to {place}, as keep-experiment --weights does, or remove {place} to train it again"
        )
    return place


def _few_shot(lab: Lab, found: Result, model: Path) -> Result:
    """The same, judged by a few images of each class that the model has not learnt."""
    scores = fewshot(
        model,
        f"{lab.data}{OTHERS}",
        shots=(SHOTS,),
        draws=SMOKE_DRAWS if lab.smoke else DRAWS,
        seed=found.seed,
        methods=("least-squares",),
    )
    (score,) = scores.scores
    return replace(
        found, value=score.mean, images=scores.test_images, right="", draws=score.accuracies
    )


def _test(lab: Lab, arm: Arm, seed: int, watcher: Watcher) -> Result:
    right, size = judge_at(_start(lab, arm, seed), arm, seed, lab.source)
    return Result(
        arm=arm.name,
        seed=seed,
        value=sum(right) / len(right),
        held_out=None,
        images=len(right),
        right=pack(right),
        parameters=size.parameters,
        forward=size.flops,
    )
