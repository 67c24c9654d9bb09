"""Markdown of the generated pages: public names, commands and figures, without Sphinx."""

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import typer

import vitlab
from vitlab.cli.main import PANELS, app

SECTIONS = {
    "models": "Models",
    "weights": "Weights and bundles",
    "images": "Preprocessing",
    "classify": "Prediction",
    "jobs": "Training, evaluation, figures and export",
    "experiments": "Experiments",
    "nn": "Attention",
    "registry": "Parts of your own",
    "errors": "Errors",
}
"""Packages of public names in the order of the page, and their headings."""

IMAGE = re.compile(r"!\[([^\]]+)\]\(([^)\s:]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def python_page() -> str:
    """Every public name with its signature and docstring, by package."""
    packages = {name: home.split(".")[1] for name, home in vitlab._HOMES.items()}
    order = [*SECTIONS, *sorted(set(packages.values()) - set(SECTIONS))]
    names = sorted(packages, key=lambda name: (order.index(packages[name]), name.lower()))
    parts = ["```{eval-rst}\n.. py:data:: vitlab.__version__\n   :type: str\n```\n"]
    for package, members in groupby(names, key=lambda name: packages[name]):
        parts.append(f"## {SECTIONS.get(package, package)}\n")
        parts.extend(_documented(name) for name in members)
    return "\n".join(parts)


def _documented(name: str) -> str:
    """Directive of a name, whose spelling says what it is: nothing is imported for it."""
    kind = "class" if name[0].isupper() else "function"
    kind = "exception" if name.endswith("Error") else kind
    members = "   :members:\n" if kind == "class" else ""
    return f"```{{eval-rst}}\n.. auto{kind}:: vitlab.{name}\n{members}```\n"


def commands_page() -> str:
    """Every command with its arguments and options, in the order of `vitlab --help`."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    parts = []
    for panel, members in PANELS.items():
        parts.append(f"## {panel}\n")
        for member in members:
            name = member.info.name if isinstance(member, typer.Typer) else member.__name__
            parts.extend(_command(f"vitlab {name}", commands[name], "###"))
    return "\n".join(parts)


def _command(name: str, command: Any, level: str) -> Iterator[str]:
    """Section of a command, followed by those of its subcommands."""
    parameters = [each for each in command.params if not getattr(each, "hidden", False)]
    arguments = [each for each in parameters if each.param_type_name == "argument"]
    options = [each for each in parameters if each.param_type_name == "option"]
    subcommands = getattr(command, "commands", {})
    usage = [name, *(_placeholder(each) for each in arguments), "[OPTIONS]" if options else ""]
    usage += ["COMMAND"] if subcommands else []
    yield f"{level} {name}\n"
    yield f"```text\n{' '.join(filter(None, usage))}\n```\n"
    yield f"{_prose(command.help or '')}\n"
    yield f"```{{program}} {name}\n```\n"
    for each in (*arguments, *options):
        yield f"````{{option}} {_signature(each)}\n{_described(each)}\n````\n"
    for sub, inner in subcommands.items():
        yield from _command(f"{name} {sub}", inner, f"{level}#")


def _placeholder(argument: Any) -> str:
    word = (argument.metavar or argument.name.upper()).strip("[].")
    word += "..." if argument.nargs == -1 else ""
    return word if argument.required else f"[{word}]"


def _signature(parameter: Any) -> str:
    """Names of an option and the kind of its value; the placeholder of an argument."""
    if parameter.param_type_name == "argument":
        return _placeholder(parameter).strip("[]")
    value = "" if parameter.is_flag else f" {parameter.metavar or _kind(parameter)}"
    return ", ".join(f"{name}{value}" for name in (*parameter.opts, *parameter.secondary_opts))


def _kind(parameter: Any) -> str:
    words = {"int": "INTEGER", "float": "NUMBER", "Path": "PATH", "bool": "BOOLEAN"}
    annotation = parameter.type_descriptor.annotation
    return words.get(getattr(annotation, "__name__", ""), "TEXT")


def _described(parameter: Any) -> str:
    """Help of a parameter, whether it is required, repeatable, and its default."""
    notes = ["Required."] if parameter.required else []
    default = parameter.default
    if isinstance(default, (str, int, float, Path)) and default not in ("", False):
        notes.append(f"Default: `{default}`.")
    return " ".join([_prose(parameter.help or ""), *notes]).strip()


def _prose(text: str) -> str:
    """Help text as Markdown: names in backticks stay, pages become links, the rest is escaped."""
    parts = re.split(r"(`[^`]*`|docs/[\w/-]+\.md)", text)
    return "".join(
        part if part.startswith("`") else _link(part) if part.endswith(".md") else _escape(part)
        for part in parts
    )


def _link(page: str) -> str:
    return f"[{page}](../{page.removeprefix('docs/')})"


def _escape(text: str) -> str:
    return re.sub(r"([\\*_<>\[\]{}$#|])", r"\\\1", text)


def gallery_page(docs: Path) -> str:
    """Every figure of the pages in `docs`, with its caption and a link to its section."""
    pages = [page for page in docs.rglob("*.md") if "zh" not in page.parts]
    pages.sort(key=lambda page: ("experiments" in page.as_posix(), page))  # experiments last
    found = [figure for page in pages for figure in _figures(page, docs)]
    return "\n".join(["::::{container} gallery\n", *dict.fromkeys(found), "::::\n"])


def _figures(page: Path, docs: Path) -> Iterator[str]:
    text = page.read_text(encoding="utf-8")
    for image in IMAGE.finditer(text):
        title = HEADING.findall(text, 0, image.start())[-1]
        path = (page.parent / image[2]).relative_to(docs)
        link = page.relative_to(docs)
        yield f":::{{figure}} {path}\n:alt: {image[1]}\n\n{image[1]}: [{title}]({link})\n:::\n"
