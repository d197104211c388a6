"""Writes the seed corpus of the fuzzer: one file for each kind of message, and a few that are broken."""

from __future__ import annotations

from pathlib import Path

from skerry import wire
from skerry.wire import Message, Type

TARGET = Path(__file__).parent / "corpus"
MESSAGES: dict[str, Message] = {
    "boot": wire.Boot(
        token=b"t" * 16, env=(b"A=1", b"B=2"), workdir=b"/home/user", user="user", deadline_ms=1000, idle_ms=500
    ),
    "hello": wire.Hello(generation=1, token=b"t" * 16),
    "start": wire.Start(argv=(b"/bin/sh", b"-c", b"echo"), env=(b"A=1",), cwd=b"/tmp", user="user", flags=3),
    "attach": wire.Attach(id=1, since_stdout=-1, since_stderr=5, flags=1),
    "signal": wire.Signal(id=1, signal=9, scope=1),
    "env": wire.Env(set=(b"A=1",), unset=(b"B",)),
    "life": wire.Life(deadline_ms=-1, lease=1, end=0, idle_ms=9, grace_ms=0),
    "words": wire.LastWords(reason="idle", at_ms=1, env_count=1, env=(b"A=1",)),
    "read": wire.Read(path=b"/etc/passwd", offset=1, length=2),
    "write": wire.Write(path=b"a/b", mode=0o600, flags=7),
    "list": wire.ListDir(path=b".", depth=3, window=4096),
    "chown": wire.Chown(path=b"x", owner="root", group="0"),
    "rename": wire.Rename(path=b"a", target=b"b", flags=1),
}


def seeds() -> dict[str, bytes]:
    found = {}
    for name, message in MESSAGES.items():
        assert message.type is not None
        found[name] = wire.encode_frame(1, message.type, message.encode())
    found["data"] = wire.data_frame(1, 0, 7, b"bytes") + wire.data_frame(1, 1, 12, b"", end=True)
    found["credit"] = wire.credit_frame(1, 2, 65536)
    found["ping"] = wire.encode_frame(0, Type.PING, b"opaque")
    found["too-long"] = b"\xff\xff\xff\xff" + bytes(8)
    found["cut-field"] = wire.encode_frame(1, Type.START, b"\x01\xff\x00\x00\x00abc")
    found["short-int"] = wire.encode_frame(1, Type.SIGNAL, wire.encode_field(1, b"1234"))
    found["several"] = b"".join(found[name] for name in ("hello", "start", "data", "credit"))
    return found


if __name__ == "__main__":
    TARGET.mkdir(exist_ok=True)
    for name, data in seeds().items():
        (TARGET / name).write_bytes(data)
