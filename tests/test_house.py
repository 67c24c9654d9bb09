"""What the package promises before anything is computed: quick imports, one version, true docs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import vitlab

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("torch", "numpy", "PIL", "matplotlib", "safetensors", "jaxtyping", "einops")
COMMANDS = ("models", "summary", "info", "convert", "predict", "demo")


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


@pytest.mark.parametrize(
    "example", sorted((ROOT / "docs" / "examples").glob("*.py")), ids=lambda path: path.stem
)
def test_documentation_examples_run(example: Path, tmp_path: Path) -> None:
    run_python("-W", "error", str(example), folder=tmp_path)


def blocks(language: str, file: Path) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", file.read_text(), flags=re.DOTALL | re.M)


def test_everything_the_readme_shows_works(tmp_path: Path) -> None:
    readme = ROOT / "README.md"
    for block in blocks("python", readme):
        run_python("-c", block, folder=tmp_path)
    shown = [line for block in blocks("console", readme) for line in block.splitlines()]
    commands = [line.removeprefix("$ vitlab ") for line in shown if line.startswith("$ vitlab ")]
    assert commands
    for command in commands:
        run_python(
            "-c",
            "from vitlab.cli.main import main; main()",
            *command.split("  #")[0].split(),
            folder=tmp_path,
        )
