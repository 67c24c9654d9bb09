"""The Hugging Face hub: upload bundles, download bundles and foreign ViTs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vitlab.errors import HubError, WeightsError
from vitlab.io.download import LARGEST, TIMEOUT
from vitlab.weights.bundle import (
    CONFIG,
    ONNX,
    WEIGHTS,
    bundle_files,
    is_bundle,
    load_bundle,
    read_bundle_config,
    verify_bundle,
)
from vitlab.weights.formats.detect import recognise
from vitlab.weights.hub_client import ANSWER, asking, check_content, staged
from vitlab.weights.load import load_weights
from vitlab.weights.reading import read_json
from vitlab.weights.tokenizer import FILES as TOKENIZER_FILES

CARD = "README.md"
INDEX = f"{WEIGHTS}.index.json"
BESIDE = (
    *("preprocessor_config.json", "processor_config.json", "open_clip_config.json"),
    *TOKENIZER_FILES,
    *(CARD, "LICENSE", "LICENSE.md", "LICENSE.txt", "NOTICE"),
)
"""Further files that are downloaded if present; nothing else is, least of all code and pickles."""
WORD = r"[A-Za-z0-9_](?:[\w.-]*[A-Za-z0-9_])?"
COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
ADDRESS = re.compile(rf"hf:(?P<owner>{WORD})/(?P<name>{WORD})(@(?P<revision>[\w.][\w./-]*))?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """Parts of `hf:OWNER/NAME[@REVISION]`."""

    owner: str
    name: str
    revision: str | None = None
    """A branch, a tag or a commit; None: the newest."""

    @property
    def repository(self) -> str:
        """Repository in the hub's notation."""
        return f"{self.owner}/{self.name}"

    def __str__(self) -> str:
        return f"hf:{self.repository}" + (f"@{self.revision}" if self.revision else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pushed:
    """Destination of a pushed bundle."""

    url: str
    commit: str
    public: bool
    files: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pulled:
    """Result of a pull."""

    address: str
    commit: str
    folder: Path
    kind: Literal["bundle", "weights"]
    files: tuple[str, ...]
    left_out: tuple[str, ...]
    """Files of the repository that were not downloaded."""
    licence: str | None
    """As the repository states it."""


def parse_address(text: str) -> Address:
    """Parts of an address; an error shows the valid form."""
    found = ADDRESS.fullmatch(text)
    if found is None or re.search(r"--|\.\.", text):
        raise HubError(f"{text!r} is no address on the hub; valid: hf:OWNER/NAME[@REVISION]")
    return Address(**found.groupdict())


def push(
    folder: Path, address: str, *, card: str, public: bool = False, progress: bool = False
) -> Pushed:
    """Upload a bundle's files and its card in one commit; the repository is created if missing."""
    where = parse_address(address)
    if where.revision is not None:
        raise HubError(f"{where}: a push makes a revision and takes none; valid: hf:OWNER/NAME")
    if not is_bundle(folder):
        raise WeightsError(f"{folder} is no bundle; valid: what `vitlab train` writes")
    files = {file.name: file for file in bundle_files(folder)}
    with asking(where, progress=progress) as api:
        api.whoami()
        remote = _repository(api, where, public=public)
        commit = api.create_commit(
            where.repository,
            operations=_operations(files, card, remote),
            commit_message="Bundle of vitlab",
        )
        url = f"{api.endpoint}/{where.repository}"
    return Pushed(url=url, commit=commit.oid, public=public, files=(*files, CARD))


def _repository(api: Any, where: Address, *, public: bool) -> set[str]:
    """Names of the files in the repository; a new one is created with the requested visibility."""
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        info = api.model_info(where.repository)
    except RepositoryNotFoundError:
        api.create_repo(where.repository, private=not public)
        return set()
    if info.private is public:
        found, cure = ("private", "leave --public out") if public else ("public", "pass --public")
        raise HubError(f"{where}: the repository is {found} already; {cure}, or change it there")
    return {sibling.rfilename for sibling in info.siblings or ()}


def _operations(files: Mapping[str, Path], card: str, remote: set[str]) -> list[Any]:
    """Operations of one commit; files of an older bundle that this one lacks are deleted."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    stale = sorted(remote & {CONFIG, WEIGHTS, ONNX} - set(files))
    return [
        *(CommitOperationAdd(name, str(path)) for name, path in files.items()),
        CommitOperationAdd(CARD, card.encode()),
        *(CommitOperationDelete(name) for name in stale),
    ]


def pull(address: str, output: Path | None = None, *, progress: bool = False) -> Pulled:
    """Download a bundle or a ViT in safetensors, verified, to a new folder or the hub's cache."""
    where = parse_address(address)
    with asking(where, progress=progress) as api, staged(output) as target:
        info = api.model_info(
            where.repository, revision=where.revision, files_metadata=True, timeout=TIMEOUT
        )
        source = _Source(api=api, where=where, info=info, target=target)
        kind = source.fetch_config()
        files = source.fetch_weights(kind)
        source.check_loads(kind)
    return Pulled(
        address=str(where),
        commit=source.commit,
        folder=source.folder if output is None else output,
        kind=kind,
        files=files,
        left_out=tuple(sorted(set(source.listing) - set(files))),
        licence=_licence(info),
    )


class _Source:
    """One commit of a repository, and the target of its files."""

    def __init__(self, *, api: Any, where: Address, info: Any, target: Path | None) -> None:
        self.api, self.where, self.target = api, where, target
        self.commit = str(info.sha)
        self.listing = _listing(api, info)
        self.folder = Path()

    def fetch_config(self) -> Literal["bundle", "weights"]:
        """Download the small file that describes the repository's content."""
        if CONFIG not in self.listing or not self.listing.keys() & {WEIGHTS, INDEX}:
            found = ", ".join(sorted(self.listing)[:6]) or "nothing"
            raise HubError(
                f"{self.where}: no model that can be pulled; found: {found}; "
                f"valid: {CONFIG} with {WEIGHTS} (pickled weights are not taken)"
            )
        self.folder = self._fetch(CONFIG).parent
        with self._naming():
            if not is_bundle(self.folder):
                return "weights"
            read_bundle_config(self.folder)
        return "bundle"

    def fetch_weights(self, kind: str) -> tuple[str, ...]:
        """Download weights and related files; foreign ones only if their tensors are a ViT's."""
        names = [WEIGHTS] if WEIGHTS in self.listing else self._shards()
        if kind == "weights" and names == [WEIGHTS]:
            self._check_tensors()
        beside = BESIDE + ((ONNX,) if kind == "bundle" else ())
        names += [name for name in beside if name in self.listing]
        for name in names:
            self._fetch(name)
        return (CONFIG, *names)

    def check_loads(self, kind: str) -> None:
        """Raise for content that cannot be opened, before it is used."""
        with self._naming():
            if kind == "bundle":
                load_bundle(self.folder)
                verify_bundle(self.folder)
            else:
                load_weights(self.folder)

    def _fetch(self, name: str) -> Path:
        self.api.limit = max(self.listing[name].size or LARGEST, ANSWER)
        path = Path(
            self.api.hf_hub_download(
                self.where.repository, name, revision=self.commit, local_dir=self.target
            )
        )
        check_content(path, self.listing[name], address=str(self.where))
        return path

    def _shards(self) -> list[str]:
        index = self._fetch(INDEX)
        with self._naming():
            where = read_json(index).get("weight_map")
        named = where if isinstance(where, dict) else {}
        shards = sorted({str(name) for name in named.values()})
        missing = [name for name in shards if name not in self.listing or "/" in name]
        if not shards or missing:
            found = f"no shard {missing[0]!r}" if missing else "no shards"
            raise HubError(f"{self.where}: {INDEX} names {found} of the repository")
        with self._naming():
            recognise(named.keys(), None)
        return [INDEX, *shards]

    def _check_tensors(self) -> None:
        """Check the names of the tensors, from the start of the file only."""
        header = self.api.parse_safetensors_file_metadata(
            self.where.repository, WEIGHTS, revision=self.commit
        )
        with self._naming():
            recognise(header.tensors.keys(), None)

    def _naming(self) -> "_Naming":
        return _Naming(self.where, self.folder)


@dataclass(frozen=True, slots=True)
class _Naming:
    """Replace a temporary folder by the address in errors about files."""

    where: Address
    folder: Path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, ValueError):
            text = str(error).replace(f"{self.folder}/", "")
            raise HubError(f"{self.where}: {text}") from error


def _listing(api: Any, info: Any) -> dict[str, Any]:
    """Files of a commit by name, if the hub's statements about them are plausible."""
    if not COMMIT.fullmatch(str(info.sha)):
        raise api.wrong(f"commit {info.sha!r}")
    for sibling in info.siblings or ():
        name, size = sibling.rfilename, sibling.size
        if not isinstance(name, str) or not isinstance(size, int | type(None)):
            raise api.wrong(f"a file {name!r} of {size!r} bytes")
        if not 0 <= (size or 0) <= LARGEST:
            raise api.wrong(f"{name} of {size:,} bytes; valid: at most {LARGEST:,}")
    return {sibling.rfilename: sibling for sibling in info.siblings or ()}


def _licence(info: Any) -> str | None:
    stated = getattr(info.card_data, "license", None)
    return None if stated in (None, "unknown") else str(stated)
