"""Seeded mutations of files: bytes, text, JSON, and the containers that hold them.

Every mutation takes the content of a valid file and a `random.Random`, and returns other content.
"""

import copy
import gzip
import io
import json
import warnings
import zipfile
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

RAW = (
    *("null", "true", "false", "0", "1", "-1", "0.5", "2", "7", "-0.0", "1e-320", '""', "[]", "{}"),
    *("Infinity", "-Infinity", "NaN", "1e999", "-1e999", "1e308", "2147483648"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775809", "18446744073709551616"),
    *("1" + "0" * 400, "9" * 5000, '"word"', '"1"', '"NaN"', "[null]", '[""]', "[[1]]", "[1, 2]"),
    *('{"a": 1}', '{"": null}', '"\\ud800"', '"\\u0000"', '"../../up"', '"/nowhere/at/all"'),
    *('"' + "x" * 100_000 + '"', '"\\u001b[31m\\n"', "[0.5, 0.5, 0.5]", "[1e999]", '["\\ud800"]'),
    *("[" * depth + "]" * depth for depth in (80, 500, 950, 100_000)),
    *('{"a":' * depth + "1" + "}" * depth for depth in (80, 500, 950, 100_000)),
)
"""Values as JSON writes them, or as some write it."""
WORDS = (
    *(b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"\r", b"\n", b'"', b"'", b",", b";", b"\t", b"{", b"]"),
    *(b"[" * 100_000, b"(" * 100_000, b"{" * 100_000, b"x" * 100_000, b"a." * 50_000, b"a" * 200),
    *(b"a = " + b"[" * 100_000 + b"]" * 100_000, b"[" + b"a." * 50_000 + b"a]\n"),
    *(
        b"-1",
        b"1e999",
        b"inf",
        b"nan",
        b"Infinity",
        b"9" * 400,
        b"9" * 5000,
        b"9223372036854775808",
    ),
    *(b"\xf0\x9f\x98\x80", b"\x1b[2J", b"../", b"/", b"True", b"None", b"()", b"(1,)", b"{'a': 1}"),
)
ZIP_METHODS = (0, 8, 9, 12, 14, 93, 99)
"""Stored, deflated, deflate64, bzip2, LZMA, Zstandard and one that does not exist."""


def mutate_bytes(content: bytes, random: Random) -> bytes:
    """Change, cut, repeat, move or insert bytes, mostly near the beginning or the end."""
    changed = bytearray(content)
    for _ in range(random.choice((1, 1, 1, 2, 4, 16))):
        at = _place(len(changed), random)
        end = min(len(changed), at + random.choice((1, 2, 4, 8, 64, 512)))
        action = random.randrange(8)
        if action <= 1 and changed:
            changed[min(at, len(changed) - 1)] ^= 1 << random.randrange(8)
        elif action == 2:
            changed[at:end] = random.randbytes(end - at)
        elif action == 3:
            changed[at:end] = random.choice((b"\0", b"\xff", b"\x80")) * (end - at)
        elif action == 4:
            del changed[at : end if random.random() < 0.5 else None]
        elif action == 5:
            changed[at:at] = changed[at:end] * random.choice((1, 1, 50))
        elif action == 6:
            start = _place(len(changed), random)
            changed[at:end] = changed[start : start + end - at]
        else:
            changed[at:at] = random.choice(WORDS)
    return bytes(changed)


def mutate_text(content: bytes, random: Random) -> bytes:
    """Insert or replace words, repeat or drop lines; sometimes change bytes."""
    action = random.randrange(5)
    if action == 0:
        return mutate_bytes(content, random)
    lines = content.split(b"\n")
    at = random.randrange(len(lines))
    if action == 1:
        lines[at:at] = random.sample(lines, 1) * random.choice((1, 1000))
    elif action == 2:
        del lines[at]
    else:
        line, word = lines[at], random.choice(WORDS)
        if random.random() < 0.3:
            word = random.choice(RAW).encode()
        start = _place(len(line), random)
        end = min(len(line), start + random.choice((0, 1, 4, 100)))
        lines[at] = line[:start] + word + line[end:]
    return b"\n".join(lines)


def mutate_toml(content: bytes, random: Random) -> bytes:
    """Replace the value of a key, or change the text."""
    lines = content.split(b"\n")
    keyed = [number for number, line in enumerate(lines) if b"=" in line]
    if not keyed or random.random() < 0.4:
        return mutate_text(content, random)
    at = random.choice(keyed)
    key = lines[at].partition(b"=")[0]
    value = random.choice(RAW).replace("null", "nan").replace("Infinity", "inf")
    lines[at] = key + b"= " + value.replace('{"a":', "{a=").encode()
    return b"\n".join(lines)


def mutate_json(content: bytes, random: Random) -> bytes:
    """Replace, remove, rename or repeat one value of a document; sometimes change its text."""
    if random.random() < 0.15:
        return mutate_text(content, random)
    document = json.loads(content)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        document = _change(document, random)
    text = json.dumps(document)
    for number, raw in enumerate(RAW):
        text = text.replace(f'"@{number}@"', raw)
    return text.replace("@again@", "").encode()


def mutate_lines(content: bytes, random: Random) -> bytes:
    """Change one line of JSON, or the lines."""
    lines = content.split(b"\n")
    full = [number for number, line in enumerate(lines) if line]
    if not full or random.random() < 0.4:
        return mutate_text(content, random)
    at = random.choice(full)
    lines[at] = mutate_json(lines[at], random).replace(b"\n", b" ")
    return b"\n".join(lines)


def mutate_csv(content: bytes, random: Random) -> bytes:
    """Replace one cell, or change the text."""
    lines = content.split(b"\n")
    at = random.randrange(len(lines))
    cells = lines[at].split(b",")
    if random.random() < 0.4:
        return mutate_text(content, random)
    word = random.choice(WORDS) if random.random() < 0.5 else random.choice(RAW).encode()
    cells[random.randrange(len(cells))] = random.choice((word, b'"' + word + b'"', b""))
    lines[at] = b",".join(cells)
    return b"\n".join(lines)


def mutate_safetensors(content: bytes, random: Random) -> bytes:
    """Change the JSON header, its length, or bytes anywhere."""
    if random.random() < 0.3:
        return mutate_bytes(content, random)
    length = int.from_bytes(content[:8], "little")
    header = mutate_json(content[8 : 8 + length], random)
    stated = len(header)
    if random.random() < 0.1:
        stated = random.choice((0, max(stated - 1, 0), stated + 1, 1 << 31, 1 << 62, (1 << 64) - 1))
    return stated.to_bytes(8, "little") + header + content[8 + length :]


def mutate_zip(content: bytes, random: Random) -> bytes:
    """Change members, their names or compression, or the comment; sometimes any bytes."""
    if random.random() < 0.35:
        return mutate_bytes(content, random)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        comment = archive.comment
        members = [(entry, archive.read(entry)) for entry in archive.infolist()]
    at, action = random.randrange(len(members)), random.randrange(8)
    entry, inside = members[at]
    if action <= 2:
        members[at] = (entry, _mutate_member(entry.filename, inside, random))
    elif action == 3:
        name = random.choice(("", "../up.npy", "/x.npy", "a\0b.npy", "x" * 60_000, "data.pkl"))
        members[at] = (_renamed(entry, name), inside)
    elif action == 4:
        members[at:at] = [members[at]]
    elif action == 5:
        comment = _mutate_comment(comment, random)
    elif action == 6:
        return _with_method(_archive(members, comment, random), entry.filename, random)
    else:
        del members[at]
    return _archive(members, comment, random)


def mutate_gzip(content: bytes, random: Random) -> bytes:
    """Change what is compressed, or the compressed bytes."""
    if random.random() < 0.5:
        return mutate_bytes(content, random)
    return gzip.compress(mutate_bytes(gzip.decompress(content), random), 1)


def mutate_onnx(content: bytes, random: Random) -> bytes:
    """Change the JSON in the metadata of an ONNX file, or bytes anywhere."""
    if random.random() < 0.6:
        return mutate_bytes(content, random)
    import onnx

    model = onnx.load_from_string(content)
    entry = random.choice(model.metadata_props)
    entry.value = mutate_json(entry.value.encode(), random).decode(errors="replace")
    return bytes(model.SerializeToString())


def mutate_parquet(content: bytes, random: Random) -> bytes:
    """Change our metadata, the columns, or bytes anywhere."""
    if random.random() < 0.6:
        return mutate_bytes(content, random)
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(io.BytesIO(content))
    metadata = dict(table.schema.metadata or {})
    action = random.randrange(4)
    if action <= 1 and b"vitlab" in metadata:
        metadata[b"vitlab"] = mutate_json(metadata[b"vitlab"], random)
        table = table.replace_schema_metadata(metadata)
    elif action == 2:
        table = table.drop_columns([random.choice(table.column_names)])
    else:
        name = random.choice(table.column_names)
        values: list[Any] = random.choice(([None], [1], ["word"], [[1.0]], [b"\xff"], [[]])) * len(
            table
        )
        at = table.column_names.index(name)
        table = table.set_column(at, name, pyarrow.array(values))
    target = io.BytesIO()
    pyarrow.parquet.write_table(table, target)
    return target.getvalue()


Mutation = Callable[[bytes, Random], bytes]
MUTATIONS: dict[str, Mutation] = {
    "bytes": mutate_bytes,
    "csv": mutate_csv,
    "gzip": mutate_gzip,
    "json": mutate_json,
    "jsonl": mutate_lines,
    "onnx": mutate_onnx,
    "parquet": mutate_parquet,
    "safetensors": mutate_safetensors,
    "text": mutate_text,
    "toml": mutate_toml,
    "zip": mutate_zip,
}


def _place(length: int, random: Random) -> int:
    """An index, more often near the beginning or the end, where headers are."""
    where = random.random()
    if where < 0.4:
        return random.randrange(min(length, 256) + 1)
    if where < 0.7:
        return length - random.randrange(min(length, 256) + 1)
    return random.randrange(length + 1)


def _change(document: Any, random: Random) -> Any:
    document = {"": copy.deepcopy(document)}
    parent, key = random.choice(
        list(_places(document))[random.random() < 0.9 :] or [(document, "")]
    )
    value, action = parent[key], random.randrange(10)
    if isinstance(value, str) and value[:1] == "{" and random.random() < 0.8:
        parent[key] = mutate_json(value.encode(), random).decode(errors="replace")
    elif action <= 5 or parent is document:
        parent[key] = f"@{random.randrange(len(RAW))}@"
    elif action == 6:
        other, place = random.choice(list(_places(document)))
        parent[key] = copy.deepcopy(other[place])
    elif action == 7:
        del parent[key]
    elif isinstance(parent, list):
        parent += [value] * random.choice((1, 1000))
    elif action == 8:
        parent[random.choice(("", "x", "model", "\ud800", "a" * 1000, "1"))] = parent.pop(key)
    else:
        parent[f"{key}@again@"] = f"@{random.randrange(len(RAW))}@"
    return document[""]


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Each value of a document by its parent and key; the first is the document itself."""
    stack = [document]
    while stack:
        parent = stack.pop()
        keys = list(parent) if isinstance(parent, dict) else list(range(len(parent)))
        for key in keys:
            yield parent, key
            if isinstance(parent[key], (dict, list)):
                stack.append(parent[key])


def _mutate_member(name: str, inside: bytes, random: Random) -> bytes:
    if not name.endswith(".npy") or random.random() < 0.3:
        return mutate_bytes(inside, random)
    length = int.from_bytes(inside[8:10], "little")
    header = mutate_text(inside[10 : 10 + length], random)
    if random.random() < 0.5:
        value = random.choice((*RAW, "'|O'", "'<U5'", "'<f8'", "'<M8[s]'", "'>f2'", "'|V2'"))
        for key in random.sample((b"'descr': ", b"'shape': ", b"'fortran_order': "), 1):
            start = inside[10 : 10 + length].find(key) + len(key)
            header = inside[10 : 10 + start] + value.encode() + b", " + inside[10 + start + 5 :]
            header = header[:length]
    header = header[:65_535]
    return inside[:8] + len(header).to_bytes(2, "little") + header + inside[10 + length :]


def _mutate_comment(comment: bytes, random: Random) -> bytes:
    start, _, note = comment.partition(b"{")
    if note and random.random() < 0.7:
        return (start + mutate_json(b"{" + note, random))[:65_535]
    deep = b"[" * 60_000, b'{"a":' * 10_000, b"\xff\xfe", b"{}", b"[]", b"1", b"null"
    return b"vitlab " + random.choice(deep)


def _renamed(entry: zipfile.ZipInfo, name: str) -> zipfile.ZipInfo:
    new = zipfile.ZipInfo("x")
    new.filename, new.compress_type = name, entry.compress_type
    return new


def _archive(members: list[tuple[zipfile.ZipInfo, bytes]], comment: bytes, random: Random) -> bytes:
    target = io.BytesIO()
    method = random.choice((None, None, 0, 8, 12, 14))
    with warnings.catch_warnings(), zipfile.ZipFile(target, "w") as archive:
        warnings.simplefilter("ignore")
        archive.comment = comment
        for entry, inside in members:
            archive.writestr(_renamed(entry, entry.filename), inside, compress_type=method)
    return target.getvalue()


def _with_method(content: bytes, name: str, random: Random) -> bytes:
    """State another compression, or encryption, in both headers of a member."""
    changed, method = bytearray(content), random.choice(ZIP_METHODS)
    flags = random.choice((None, 1, 0x20, 0x40, 0x800, 0x2000))
    for start, at in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        place = changed.find(start)
        while place >= 0:
            changed[place + at : place + at + 2] = method.to_bytes(2, "little")
            if flags is not None:
                changed[place + at - 2 : place + at] = flags.to_bytes(2, "little")
            place = changed.find(start, place + 4)
            if random.random() < 0.7:
                break
    return bytes(changed)
