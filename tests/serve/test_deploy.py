"""The Dockerfile and the Kubernetes manifest: their syntax, and that they fit the server."""

import json
import re
from importlib import import_module
from typing import Any

import pytest
import typer

from serve.server import SOURCE
from vitlab.cli.serve import serve
from vitlab.serve.openapi import document

DEPLOY = SOURCE.parent / "docs" / "deploy"
INSTRUCTIONS = (
    *("FROM", "ENV", "WORKDIR", "COPY", "RUN", "USER", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK"),
    *("ENTRYPOINT", "CMD", "ARG", "LABEL", "VOLUME", "SHELL"),
)
PATHS = document("m")["paths"]


def options_of(arguments: list[str]) -> dict[str, Any]:
    """Options of `vitlab serve` with these arguments; raises for a wrong one."""
    app = typer.Typer()
    app.command()(serve)
    return typer.main.get_command(app).make_context("serve", list(arguments)).params


def instructions() -> list[tuple[str, str]]:
    text = (DEPLOY / "Dockerfile").read_text()
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in joined.splitlines()]


def manifest() -> dict[str, Any]:
    yaml: Any = import_module("yaml")  # a dependency of huggingface_hub
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    return {one["kind"]: one for one in documents}


def test_the_dockerfile_is_valid() -> None:
    found = instructions()
    assert {name for name, _ in found} <= set(INSTRUCTIONS)
    assert found[0][0] == "FROM"
    values = dict(found)
    command = json.loads(values["ENTRYPOINT"]) + json.loads(values["CMD"])
    assert command[:2] == ["vitlab", "serve"]
    options = options_of(command[2:])
    assert options["host"] == "0.0.0.0"
    assert int(values["EXPOSE"]) == options["port"]
    assert values["STOPSIGNAL"] == "SIGTERM"
    assert int(values["USER"]) > 0


def test_what_the_dockerfile_copies_and_probes_exists() -> None:
    values = instructions()
    for sources in (value.split()[:-1] for name, value in values if name == "COPY"):
        assert sources
        assert all((SOURCE.parent / source).exists() for source in sources)
    code = json.loads(dict(values)["HEALTHCHECK"].split("CMD ")[1])[-1]
    compile(code, "HEALTHCHECK", "exec")
    path = re.search(r"http://127\.0\.0\.1:8000(/[\w/]+)", code)
    assert path is not None
    assert "get" in PATHS[path[1]]


def test_the_manifest_is_valid() -> None:
    found = manifest()
    assert found.keys() == {"Deployment", "Service"}
    deployment, pod = found["Deployment"]["spec"], found["Deployment"]["spec"]["template"]
    labels = pod["metadata"]["labels"]
    assert labels == deployment["selector"]["matchLabels"] == found["Service"]["spec"]["selector"]
    (container,) = pod["spec"]["containers"]
    volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    (port,) = container["ports"]
    assert found["Service"]["spec"]["ports"][0]["targetPort"] == port["name"]
    options = options_of(container["args"])
    assert options["port"] == port["containerPort"]
    assert options["allow_host"] == [found["Service"]["metadata"]["name"]]
    scraped = pod["metadata"]["annotations"]
    assert scraped["prometheus.io/port"] == str(options["port"])
    assert "get" in PATHS[scraped["prometheus.io/path"]]
    assert options["public_metrics"]  # annotations cannot carry a key
    assert str(options["api_key_file"]).startswith(container["volumeMounts"][0]["mountPath"])
    pause = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["spec"]["terminationGracePeriodSeconds"] > options["drain"] + pause


@pytest.mark.parametrize("probe", ["startupProbe", "readinessProbe", "livenessProbe"])
def test_probes_need_no_key(probe: str) -> None:
    (container,) = manifest()["Deployment"]["spec"]["template"]["spec"]["containers"]
    check = container[probe]["httpGet"]
    assert check["port"] == container["ports"][0]["name"]
    assert "401" not in PATHS[check["path"]]["get"]["responses"]
    assert check["path"] == ("/health/live" if probe == "livenessProbe" else "/health/ready")
