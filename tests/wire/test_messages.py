"""Every message comes back as it was sent, skips what it does not know, and has its tags in the documentation."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry import wire
from skerry.wire import FieldError, Message, Type, encode_field
from skerry.wire.codec import MESSAGES, _plan, schema

DOCUMENT = Path(__file__).resolve().parents[2] / "docs/design/wire.md"
SNAPSHOT = Path(__file__).parent / "schema.json"

text = st.text(max_size=50).filter(lambda value: not re.search("[\ud800-\udfff]", value))
KINDS: dict[str, st.SearchStrategy[object]] = {
    "int": st.integers(-(2**63), 2**63 - 1),
    "bytes": st.binary(max_size=50),
    "str": text,
    "list": st.lists(st.binary(max_size=20), max_size=5).map(tuple),
}


@given(st.data())
@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_a_message_comes_back_as_it_was_sent(name: str, data: st.DataObject) -> None:
    cls = MESSAGES[name]
    values = {
        # A list that must be there has a member: an empty one cannot be told from none.
        field: data.draw(KINDS[kind].filter(bool) if kind == "list" and required else KINDS[kind])
        for field, _, kind, required in _plan(cls)
        if required or data.draw(st.booleans())
    }
    message = cls(**values)
    assert cls.decode(message.encode()) == message
    assert cls.decode(message.encode() + encode_field(250, b"from the future")) == message


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_a_message_without_a_required_field_is_refused(name: str) -> None:
    required = [field for field, _, _, must in _plan(MESSAGES[name]) if must]
    if required:
        with pytest.raises(FieldError, match="without"):
            MESSAGES[name].decode(b"")
    else:
        assert isinstance(MESSAGES[name].decode(b""), Message)


def test_bytes_that_are_no_text_survive_in_text_fields() -> None:
    raw = encode_field(1, b"\xff\xfe")
    assert MESSAGES["Failure"].decode(raw).encode().startswith(raw)


def test_the_schema_is_the_one_that_was_agreed() -> None:
    """A change here is a change of the protocol: messages only grow, so no line of the snapshot may change or go."""
    snapshot = json.loads(SNAPSHOT.read_text())
    assert snapshot == {"types": {item.name: int(item) for item in Type}, "messages": schema()}


def test_every_frame_type_is_documented() -> None:
    rows = dict(re.findall(r"^\| (0x[0-9a-f]{2}) \| (\w+) \|", DOCUMENT.read_text(), re.MULTILINE))
    assert rows == {f"0x{item:02x}": item.name for item in Type}


NAMES = {
    "type_name": "type",
    "bytes_read": "bytes",
    "bytes_hashed": "bytes",
    "content_bytes": "bytes",
    "source": "from",
}
SECTIONS = {
    "Boot": "`BOOT_FD` gives",
    "Hello": "The first frame of a connection",
    "Failure": "`code` 1 (text), `errno`",
    "Start": "START: ",
    "Started": "Answers: REPLY `id` 1, `pid` 2, `started_ms` 3 (",
    "Exit": "REPLY FINAL *exit*",
    "Attach": "ATTACH: ",
    "Attached": "Answers: REPLY `id` 1, `pid` 2, `started_ms` 3,",
    "Signal": "SIGNAL: ",
    "Processes": "PROCESSES: ",
    "ProcessEntry": "PROCESSES: ",
    "Env": "ENV: ",
    "EnvReply": "ENV: ",
    "Life": "LIFE: ",
    "LifeReply": "LIFE: ",
    "LastWords": "**Last words** are",
    "Stats": "STATS: ",
    "StatsReply": "STATS: ",
    "FileInfoMessage": "*info* is",
    "Read": "READ: ",
    "ReadDone": "READ: ",
    "Write": "WRITE: ",
    "ListDir": "LIST: ",
    "Count": "LIST: ",
    "Stat": "STAT: ",
    "MkDir": "MKDIR: ",
    "Remove": "REMOVE: ",
    "Rename": "RENAME: ",
    "Chmod": "CHMOD: ",
    "Chown": "CHOWN: ",
    "Symlink": "SYMLINK: ",
    "Copy": "COPY: ",
    "Hash": "HASH: ",
    "HashReply": "HASH: ",
    "Notice": "A *notice* is",
    "Resize": "RESIZE: ",
    "Watch": "WATCH: ",
    "Watching": "WATCH: ",
    "Change": "WATCH: ",
    "Ports": "PORTS: ",
    "PortEntry": "PORTS: ",
    "Dial": "DIAL: ",
    "Dialled": "DIAL: ",
    "DialDone": "DIAL: ",
    "Pack": "PACK: ",
    "Unpack": "UNPACK: ",
    "TreeInfo": "*tree* is",
    "TreeEntry": "| 1 | ENTRY",
    "TreeSkipped": "| 4 | SKIPPED",
    "TreeEnd": "| 5 | TREE_END",
}


@pytest.mark.parametrize("name", sorted(set(MESSAGES) - {"Empty"}))
def test_every_tag_is_documented(name: str) -> None:
    document = " ".join(DOCUMENT.read_text().split())  # however its lines are broken
    start = " ".join(SECTIONS[name].split())
    assert start in document, f"wire.md does not describe {name}"
    section = document[document.index(start) :][:1200]
    common = "Every file request has `path` 1" in document
    inherited = {
        item.name for base in MESSAGES[name].__bases__ if base in MESSAGES.values() for item in dataclasses.fields(base)
    }  # type: ignore[arg-type]
    for field in dataclasses.fields(MESSAGES[name]):  # type: ignore[arg-type]
        if field.name in inherited:
            continue
        tag, word = field.metadata["tag"], NAMES.get(field.name, field.name)
        if common and (word, tag) in (("path", 1), ("user", 2)) and name in FILE_REQUESTS:
            continue
        assert re.search(rf"`{word}`\s+{tag}\b", section), f"wire.md does not say that {name}.{word} is {tag}"


@pytest.mark.parametrize(
    "name", [name for name, cls in sorted(MESSAGES.items()) if "flags" in cls.__dataclass_fields__]
)
def test_a_message_with_flags_has_its_own_and_each_is_documented(name: str) -> None:
    flags = getattr(wire, f"{name}Flags")
    assert len(flags.__members__) == len(flags), "two names for one bit"
    document = " ".join(DOCUMENT.read_text().split())
    section = document[document.index(SECTIONS[name]) :]
    assert [flag.name for flag in flags if f"{int(flag)} = {flag.name}" not in section] == []


FILE_REQUESTS = {
    "Read",
    "Write",
    "ListDir",
    "Stat",
    "MkDir",
    "Remove",
    "Rename",
    "Chmod",
    "Chown",
    "Symlink",
    "Copy",
    "Hash",
    "Watch",
    "Pack",
    "Unpack",
}
