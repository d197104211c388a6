"""SKERRY_HOMEs to carry states between, and what is put into the sandboxes there."""

from __future__ import annotations

import os
from pathlib import Path

from skerry import Sandbox
from skerry.core.models import SandboxSpec
from skerry.providers.local import LocalProvider
from skerry.providers.local.engine import Engine
from skerry.trees.hash import tree_hash

FILL = r"""
import os, socket
os.remove("/etc/hosts")                                   # a whiteout
os.system("rm -rf /etc/ssl && mkdir /etc/ssl")            # an opaque directory
open("/etc/ssl/mine", "w").write("only this")
os.makedirs("/workspace/tree/deep/er")
os.chdir("/workspace/tree")
open("file", "w").write("content\n" * 1000)
os.link("file", "deep/second name")
os.symlink("/nowhere", "dangling")
with open("sparse", "wb") as sparse:
    sparse.seek(40 << 20)
    sparse.write(b"end")
os.setxattr("file", "user.colour", b"blue")
for name in (b"new\nline", b"\xff\xfe", b" ", b".wh.file", b".wh..wh..opq", "\u00fc".encode()):
    open(name, "wb").write(name)
open("setuid", "w").write("#!/bin/sh\n")
os.chmod("setuid", 0o4711)
os.mkfifo("fifo")
socket.socket(socket.AF_UNIX).bind("socket")
os.chown("deep", 1000, 1000)
os.chmod("deep", 0o2750)
os.utime("file", ns=(1, 1_234_567_890_123_456_789))
"""
"""Run as the sandbox's root: one of each kind of file, and changes of what the template has."""


def box(engine: Engine, sandbox_id: str) -> Sandbox:
    return Sandbox.get(sandbox_id, provider=LocalProvider(engine))


def create(engine: Engine, **options: object) -> Sandbox:
    return box(engine, engine.create(SandboxSpec(timeout=600, **options)).id)  # type: ignore[arg-type]


def fill(sandbox: Sandbox) -> None:
    sandbox.exec(["python3", "-"], stdin=FILL, sudo=True, check=True)


def inside(sandbox: Sandbox) -> list[str]:
    """What the sandbox itself sees: contents and names, then owners, times, links and attributes."""
    look = (
        r"cd /workspace; find . ! -type s ! -type d -printf '%P|%y|%m|%U|%G|%T@|%n|%l|%s\n'; "
        r"find . -type d -printf '%P|%m|%U|%G|%T@\n'; ls /etc/ssl; ls /etc/hosts"
    )
    listed = sandbox.exec(look, sudo=True).stdout_bytes
    xattr = sandbox.exec(["python3", "-c", "import os; print(os.getxattr('/workspace/tree/file', 'user.colour'))"])
    return [
        *sorted(listed.decode("utf-8", "backslashreplace").splitlines()),
        xattr.stdout,
        sandbox.files.hash("/etc/ssl", user="root"),
        sandbox.files.hash("/workspace/tree/file"),
        sandbox.files.hash("/workspace/tree/sparse"),
    ]


def blocks(sandbox: Sandbox) -> int:
    """What its sparse file, of 40 MiB and three bytes, takes on disk, in KiB."""
    return int(sandbox.exec("stat -c %b /workspace/tree/sparse", check=True).stdout) // 2


def outside(engine: Engine, sandbox_id: str) -> list[str]:
    """The hashes of the layers of snapshots under a sandbox, topmost first."""
    lowers = engine.store.read(sandbox_id).lowers
    return [tree_hash(engine.store.home / layer) for layer in lowers if layer.startswith("pool/snapshots/")]


def own(engine: Engine, sandbox_id: str) -> str:
    return tree_hash(engine.storage.uppers / sandbox_id / "u")


def trees(engine: Engine) -> list[str]:
    """Everything that takes room, and every record of a snapshot."""
    storage = engine.storage
    found = [f"{place.name}/{name}" for place in (storage.uppers, storage.kept) for name in os.listdir(place)]
    return sorted(found + [name for name in os.listdir(engine.store.snapshots) if name != "lock"])


def use(home: Path) -> Engine:
    engine = Engine(home)
    engine.prepare()
    return engine
