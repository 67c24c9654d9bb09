"""What the package promises before anything is computed: quick imports, one version, true docs."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import jaxtyping
import pytest
import torch

import vitlab

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("torch", "numpy", "PIL", "matplotlib", "safetensors", "jaxtyping", "einops")
COMMANDS = (
    *("models", "summary", "train", "evaluate", "info", "convert", "predict", "demo", "data"),
    *("push", "pull", "weights", "export"),
    *("features", "similar", "fewshot", "finetune", "explain", "figures", "walkthrough"),
    "zeroshot",
    *("benchmark", "experiment", "pretrain", "serve", "explore", "doctor"),
)


def run_python(*arguments: str, folder: Path = ROOT) -> str:
    """What a fresh interpreter prints; an exit code other than 0 fails the test."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded_by(statements: str, unwanted: tuple[str, ...]) -> list[str]:
    """Which unwanted packages a fresh interpreter has loaded after these statements."""
    code = f"{statements}\nimport sys\nprint(*(m for m in {unwanted} if m in sys.modules))"
    return run_python("-c", code).splitlines()[-1].split()


def test_import_loads_nothing_but_the_standard_library() -> None:
    assert loaded_by("import vitlab", (*HEAVY, "typer", "rich", "importlib.metadata")) == []


def test_help_loads_nothing_heavy() -> None:
    lines = [f"run([{command!r}, '--help'])" for command in COMMANDS]
    code = "\n".join(["from vitlab.cli.main import run", "run(['--help'])", *lines])
    assert loaded_by(code, HEAVY) == []


def test_public_names_are_sorted_and_resolve() -> None:
    assert vitlab.__all__ == sorted(vitlab.__all__)
    assert set(vitlab.__all__) <= set(dir(vitlab))
    for name in vitlab.__all__:
        assert getattr(vitlab, name) is not None


def test_shapes_are_checked_in_tests() -> None:
    q, k = torch.zeros(1, 2, 3, 5), torch.zeros(1, 2, 3, 7)
    with pytest.raises(jaxtyping.TypeCheckError):
        vitlab.dot_product_attention(q, k, k)


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'create_modle'"):
        vitlab.create_modle  # noqa: B018


def test_type_checkers_see_the_same_names_as_users() -> None:
    text = (ROOT / "src" / "vitlab" / "__init__.py").read_text()
    declared = re.findall(r"^    from (\S+) import (\w+) as \2$", text, flags=re.MULTILINE)
    assert {name: home for home, name in declared} == vitlab._HOMES


def test_the_changelog_opens_with_the_version() -> None:
    heading = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert heading is not None
    assert heading[1] == vitlab.__version__


def test_the_version_is_written_once() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in project
    assert '[tool.hatch.version]\npath = "src/vitlab/__init__.py"' in project


def test_documentation_examples_run(tmp_path: Path) -> None:
    """All of them in one interpreter, each in a folder of its own."""
    examples = sorted((ROOT / "docs" / "examples").glob("*.py"))
    assert examples
    code = ["import os, runpy"]
    for example in examples:
        (tmp_path / example.stem).mkdir()
        code.append(f"os.chdir({str(tmp_path / example.stem)!r})")
        code.append(f"runpy.run_path({str(example)!r}, run_name='__main__')")
    run_python("-W", "error", "-c", "\n".join(code))


def test_everything_the_readme_shows_works(tmp_path: Path) -> None:
    shown = re.findall(
        r"^```(python|console)\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.M
    )
    assert {language for language, _ in shown} == {"python", "console"}
    script = ["from vitlab.cli.main import run"]
    for language, block in shown:
        if language == "python":
            script.append(block)
        for line in block.splitlines() if language == "console" else ():
            arguments = shlex.split(line.removeprefix("$ vitlab"), comments=True)
            script.append(f"assert run({arguments}) == 0, {line!r}")
    run_python("-c", "\n".join(script), folder=tmp_path)
