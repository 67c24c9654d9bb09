"""A stand-in for the Hugging Face hub on this machine: what its client asks, and no more."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from data.server import listening

TOKEN = "hf_" + "a" * 34
LARGE = (".safetensors", ".onnx", ".bin")
"""Suffixes that the hub keeps outside of git."""


@dataclass
class Repository:
    """Commits, each a whole set of files."""

    private: bool
    commits: list[tuple[str, dict[str, bytes]]] = field(default_factory=list)
    licence: str | None = None

    @property
    def files(self) -> dict[str, bytes]:
        """Of the newest commit."""
        return self.commits[-1][1] if self.commits else {}

    def commit(self, files: dict[str, bytes]) -> str:
        """Make these the newest files."""
        oid = hashlib.sha1(f"{len(self.commits)}{sorted(files)}".encode()).hexdigest()
        self.commits.append((oid, files))
        return oid

    def at(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """A commit by its number or as `main`."""
        if revision == "main":
            return self.commits[-1] if self.commits else ("0" * 40, {})
        return next((commit for commit in self.commits if commit[0] == revision), None)


@dataclass
class Hub:
    """What the stand-in holds, how it misbehaves, and what it was asked."""

    address: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)
    """Files whose last byte is changed on the way."""
    forbidden: bool = False
    """The token may read but not write."""
    down: bool = False
    asked: list[str] = field(default_factory=list)
    sent: dict[str, int] = field(default_factory=dict)
    """Bytes that left, by file."""

    def publish(self, name: str, files: dict[str, bytes], *, private: bool = False) -> str:
        """Put files there by another way than a push."""
        repository = self.repositories.setdefault(name, Repository(private))
        return repository.commit(files)


@contextmanager
def serving() -> Iterator[Hub]:
    """The stand-in as long as it is needed."""
    hub = Hub()

    class OfHub(_Handler):
        pass

    OfHub.hub = hub
    with listening(OfHub) as address:
        hub.address = address
        yield hub


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"
    routes = (
        ("GET", r"/api/whoami-v2", "whoami"),
        ("POST", r"/api/repos/create", "create"),
        ("POST", r"/api/validate-yaml", "validate"),
        ("POST", r"/api/models/(.+/.+)/preupload/main", "preupload"),
        ("POST", r"/(.+/.+)\.git/info/lfs/objects/batch", "batch"),
        ("PUT", r"/lfs/(\w+)", "store"),
        ("POST", r"/api/models/(.+/.+)/commit/main", "commit"),
        ("GET", r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", "info"),
        ("HEAD", r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", "resolve"),
        ("GET", r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", "resolve"),
    )

    def do_GET(self) -> None:
        self.body = self.read_body()
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(f"{self.command} {path}")
        if self.hub.down:
            return self.refuse(500, "")
        for method, pattern, name in self.routes:
            found = re.fullmatch(pattern, path)
            if method == self.command and found:
                return getattr(self, name)(*found.groups())
        self.refuse(404, "")

    do_HEAD = do_POST = do_PUT = do_GET

    def read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    @property
    def known(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def answer(self, content: Any, status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def readable(self, name: str) -> Repository | None:
        repository = self.hub.repositories.get(name)
        if repository is not None and (self.known or not repository.private):
            return repository
        self.refuse(404 if self.known else 401, "RepoNotFound")
        return None

    def whoami(self) -> None:
        if self.known:
            self.answer({"type": "user", "name": "alice", "orgs": [], "auth": {}})
        else:
            self.refuse(401, "")

    def create(self) -> None:
        asked = json.loads(self.body)
        name = f"{asked['organization']}/{asked['name']}"
        if self.hub.forbidden or not self.known:
            return self.refuse(403, "")
        private = asked.get("visibility") == "private" or asked.get("private") is True
        self.hub.repositories[name] = Repository(private)
        self.answer({"url": f"{self.hub.address}/{name}"})

    def validate(self) -> None:
        assert json.loads(self.body)["content"].startswith("---\n")
        self.answer({"errors": [], "warnings": []})

    def preupload(self, name: str) -> None:
        names = [file["path"] for file in json.loads(self.body)["files"]]
        mode = {True: "lfs", False: "regular"}
        files = [
            {"path": file, "uploadMode": mode[file.endswith(LARGE)], "shouldIgnore": False}
            for file in names
        ]
        self.answer({"files": files})

    def batch(self, name: str) -> None:
        objects = [
            {
                **{key: item[key] for key in ("oid", "size")},
                "actions": {"upload": {"href": f"{self.hub.address}/lfs/{item['oid']}"}},
            }
            for item in json.loads(self.body)["objects"]
        ]
        self.answer({"transfer": "basic", "objects": objects})

    def store(self, oid: str) -> None:
        assert hashlib.sha256(self.body).hexdigest() == oid
        self.hub.large[oid] = self.body
        self.answer({})

    def commit(self, name: str) -> None:
        if self.hub.forbidden:
            return self.refuse(403, "")
        repository = self.hub.repositories[name]
        files = dict(repository.files)
        for line in self.body.splitlines():
            item = json.loads(line)
            value = item["value"]
            if item["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif item["key"] == "lfsFile":
                files[value["path"]] = self.hub.large[value["oid"]]
            elif item["key"] == "deletedFile":
                del files[value["path"]]
        oid = repository.commit(files)
        self.answer({"commitOid": oid, "commitUrl": f"{self.hub.address}/{name}/commit/{oid}"})

    def info(self, name: str, revision: str | None) -> None:
        repository = self.readable(name)
        if repository is None:
            return None
        found = repository.at(revision or "main")
        if found is None:
            return self.refuse(404, "RevisionNotFound")
        siblings = [_listed(file, content) for file, content in found[1].items()]
        card = {} if repository.licence is None else {"license": repository.licence}
        self.answer(
            {
                "_id": "1",
                "id": name,
                "modelId": name,
                "sha": found[0],
                "private": repository.private,
                "tags": [],
                "downloads": 0,
                "likes": 0,
                "siblings": siblings,
                "cardData": card,
            }
        )

    def resolve(self, name: str, revision: str, file: str) -> None:
        repository = self.readable(name)
        if repository is None:
            return None
        found = repository.at(revision)
        if found is None or file not in found[1]:
            return self.refuse(404, "EntryNotFound" if found else "RevisionNotFound")
        content = found[1][file]
        listed = _listed(file, content)
        if file in self.hub.damaged:
            content = content[:-1] + bytes([content[-1] ^ 1])
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        start = int(span[1]) if span else 0
        part = content[start : int(span[2]) + 1 if span and span[2] else None]
        self.send_response(206 if span else 200)
        self.send_header("X-Repo-Commit", found[0])
        self.send_header("ETag", f'"{listed.get("lfs", {}).get("sha256", listed["blobId"])}"')
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if self.command == "GET":
            self.hub.sent[file] = self.hub.sent.get(file, 0) + len(part)
            self.wfile.write(part)


def _listed(file: str, content: bytes) -> dict[str, Any]:
    blob = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
    entry: dict[str, Any] = {"rfilename": file, "size": len(content), "blobId": blob}
    if file.endswith(LARGE):
        digest = hashlib.sha256(content).hexdigest()
        entry["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 134}
    return entry


@contextmanager
def standing_in(monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[Hub]:
    """The stand-in in the place of the hub, with a valid token and a cache of its own."""
    from huggingface_hub import constants, file_download, utils

    # Before release 1 a session keeps connections, and being offline, from its beginning on.
    forget_sessions = getattr(utils, "reset_sessions", lambda: None)
    with serving() as hub:
        template = hub.address + "/{repo_id}/resolve/{revision}/{filename}"
        settings = {
            "ENDPOINT": hub.address,
            "HF_HUB_CACHE": str(home / "cache"),
            "HF_TOKEN_PATH": str(home / "token"),
            "HF_HUB_DISABLE_TELEMETRY": True,
            "HF_HUB_DISABLE_XET": True,
            "HF_HUB_OFFLINE": False,
            "HUGGINGFACE_CO_URL_TEMPLATE": template,
        }
        for name, value in settings.items():
            monkeypatch.setattr(constants, name, value, raising=False)  # releases differ
        # Before release 1 this module keeps the template of its first import, of another server.
        monkeypatch.setattr(file_download, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
        forget_sessions()
        yield hub
        forget_sessions()
