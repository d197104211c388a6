"""The `host` template: this machine's own system files, read-only, over a small /etc made here.

/usr is shared as it is, without a mapping of ids, so files that only the machine's root may read stay unreadable for
the sandbox's root. Nothing else of the machine is visible: /etc is built from a list of public files.
"""

from __future__ import annotations

import hashlib
import os
import re
import select
import stat
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Literal

from skerry._model import Model
from skerry.providers.local.locks import FileLock
from skerry.providers.local.sandbox.folders import Store
from skerry.providers.local.storage.base import remove_tree

LAYOUT = "2"
"""Part of the layer's name; raise it when what is built below changes."""

CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
_CA_VARIABLES = (
    "SSL_CERT_FILE",
    "NODE_EXTRA_CA_CERTS",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
)

_COPIED = (
    "alternatives ld.so.cache ld.so.conf ld.so.conf.d nsswitch.conf localtime timezone services protocols rpc "
    "mime.types profile profile.d bash.bashrc inputrc terminfo magic magic.mime os-release debian_version lsb- "
    "release locale.alias locale.conf default/locale ssl/openssl.cnf ssl/certs/ca-certificates.crt host.conf "
    "gai.conf python3 python3.11 python3.12 python3.13 perl java-17-openjdk java-21-openjdk fonts vim nanorc skel "
    "adduser.conf deluser.conf login.defs default/useradd shells"
).split()
_WATCHED = ("ld.so.cache", "alternatives", "localtime", "ssl/certs/ca-certificates.crt", "os-release", "nsswitch.conf")
_SYSTEM_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")

_PASSWD = """root:*:0:0:root:/root:/bin/bash
daemon:*:1:1:daemon:/usr/sbin:/usr/sbin/nologin
bin:*:2:2:bin:/bin:/usr/sbin/nologin
sys:*:3:3:sys:/dev:/usr/sbin/nologin
mail:*:8:8:mail:/var/mail:/usr/sbin/nologin
www-data:*:33:33:www-data:/var/www:/usr/sbin/nologin
_apt:*:42:65534::/nonexistent:/usr/sbin/nologin
nobody:*:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
user:*:1000:1000:user:/home/user:/bin/bash
"""
_GROUP = """root:x:0:
daemon:x:1:
bin:x:2:
sys:x:3:
adm:x:4:
tty:x:5:
mail:x:8:
www-data:x:33:
shadow:x:42:
staff:x:50:
users:x:100:
nogroup:x:65534:
user:x:1000:
"""
_PAM = """# For every program that asks: passwd, chfn, su … The sandbox's root needs no password.
auth sufficient pam_rootok.so
auth required pam_unix.so
account required pam_permit.so
password required pam_unix.so yescrypt
session required pam_permit.so
"""
_FILES = {
    "etc/pam.d/other": _PAM,
    "etc/passwd": _PASSWD,
    "etc/group": _GROUP,
    "etc/hosts": "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n",
    "etc/hostname": "skerry\n",
    "etc/resolv.conf": "nameserver 127.0.0.53\n",
    "etc/fstab": "",
}
_DIRECTORIES = {
    "": 0o755,
    "etc": 0o755,
    "etc/pam.d": 0o755,
    "usr": 0o755,
    "proc": 0o555,
    "sys": 0o555,
    "dev": 0o755,
    "run": 0o755,
    "run/lock": 0o1777,
    "tmp": 0o1777,
    "var": 0o755,
    "var/tmp": 0o1777,
    "var/log": 0o755,
    "var/cache": 0o755,
    "var/lib": 0o755,
    "var/mail": 0o2775,
    "root": 0o700,
    "home": 0o755,
    "opt": 0o755,
    "srv": 0o755,
    "mnt": 0o755,
    "media": 0o755,
    ".skerry": 0o755,
}
_USER_DIRECTORIES = ("home/user", "workspace")
_MAIL = 8
"""The group whose programs deliver mail; `useradd` and `adduser` make a file for each user there."""


@cache
def environment() -> dict[str, str]:
    """The variables that let programs inside find the machine's public certificates."""
    return dict.fromkeys(_CA_VARIABLES, str(CA_BUNDLE)) if CA_BUNDLE.exists() else {}


@cache
def mounts() -> list[str]:
    """The machine's directories that are shared read-only: /usr, and the old top-level ones unless they are links."""
    return [
        "/usr",
        *(f"/{name}" for name in _SYSTEM_LINKS if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}")),
    ]


class Part(Model, kw_only=False):
    """Something of this machine that is shared read-only, at the same path inside."""

    path: str
    how: Literal["share", "bind"]
    """`share`: through an overlay, with the sandbox's inodes; `bind`: with the machine's inodes."""


class _MountTable:
    """What is mounted below `mounts`; read again only when the kernel says that something has changed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # protects all of it: the kernel tells each change once
        self._reader = -1
        self._poll = select.poll()
        self._process = 0
        self._parts: list[Part] = []

    def parts(self) -> list[Part]:
        """Each after those it lies in. Raises OSError."""
        with self._lock:
            if self._process != os.getpid():  # a forked child shares the descriptor, which tells each change once
                self._reader = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
                self._poll = select.poll()
                self._poll.register(self._reader, select.POLLPRI)
                self._process, self._parts = os.getpid(), self._read()
            elif self._poll.poll(0):
                self._parts = self._read()
            return self._parts

    def _read(self) -> list[Part]:
        os.lseek(self._reader, 0, os.SEEK_SET)
        with open(self._reader, "rb", closefd=False) as file:
            lines = file.read().splitlines()
        tops, below = mounts(), dict[str, Part]()
        for line in lines:
            before, _, after = line.partition(b" - ")
            path = os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), before.split()[4]))
            if path.startswith(tuple(f"{top}/" for top in tops)) and ":" not in path:
                # overlayfs takes directories, and no automounts
                plain = os.path.isdir(path) and after.split()[0] != b"autofs"
                below[path] = Part(path, "share" if plain else "bind")
        return [*(Part(top, "share") for top in tops), *sorted(below.values(), key=lambda part: part.path)]


_table = _MountTable()


def parts() -> list[Part]:
    """What is shared: `mounts`, and what is mounted below them, each after those it lies in. Raises OSError."""
    return _table.parts()


def layer(store: Store) -> Path:
    """The directory of the read-only layer, built if this machine's files have changed. Raises OSError."""
    path = store.templates / f"host-{_name(tuple(map(_look, _WATCHED)))}"
    if not path.is_dir():
        build_layer(path, _fill)
    return path


def _look(name: str) -> tuple[int, int] | None:
    try:
        info = os.stat(f"/etc/{name}")
    except OSError:
        return None
    return info.st_mtime_ns, info.st_size


@cache
def _name(seen: tuple[tuple[int, int] | None, ...]) -> str:
    return hashlib.sha256(repr((LAYOUT, mounts(), seen)).encode()).hexdigest()[:16]


def build_layer(path: Path, fill: Callable[[Path], None]) -> None:
    """Make a layer beside its place and move it there as a whole; removes what a process that died left there."""
    with FileLock(path.parent / "building"):
        for left in path.parent.glob(".building-*"):
            remove_tree(left)
        if path.is_dir():
            return
        fresh = path.with_name(f".building-{path.name}")
        try:
            fresh.mkdir()
            fill(fresh)
            fresh.rename(path)
        except BaseException:
            remove_tree(fresh)
            raise


def _fill(root: Path) -> None:
    for name, mode in _DIRECTORIES.items():
        (root / name).mkdir(exist_ok=True)
        (root / name).chmod(mode)
    for name in _USER_DIRECTORIES:
        (root / name).mkdir()
        os.chown(root / name, 1000, 1000)
    os.chown(root / "var/mail", 0, _MAIL)
    for name in _SYSTEM_LINKS:
        if os.path.islink(f"/{name}"):
            (root / name).symlink_to(os.readlink(f"/{name}"))
        elif os.path.isdir(f"/{name}"):
            (root / name).mkdir()
    (root / "var/run").symlink_to("/run")
    (root / "var/lock").symlink_to("/run/lock")
    for name in _COPIED:
        _copy_public(Path("/etc") / name, root / "etc" / name)
    for name, text in _FILES.items():
        (root / name).write_text(text)
        (root / name).chmod(0o644)
    (root / "etc/mtab").symlink_to("../proc/self/mounts")
    (root / ".skerry/agent").touch()
    for name in (".bashrc", ".profile"):
        _copy_public(Path("/etc/skel") / name, root / "home/user" / name, owner=1000)


def _copy_public(source: Path, target: Path, owner: int = 0) -> None:
    """Copy what everybody may read: links as they are, regular files and directories; leave out everything else."""
    try:
        info = source.lstat()
    except OSError:
        return
    if stat.S_ISLNK(info.st_mode):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(os.readlink(source))
    elif stat.S_ISDIR(info.st_mode) and info.st_mode & 0o005 == 0o005:
        target.mkdir(parents=True, exist_ok=True)
        for name in os.listdir(source):
            _copy_public(source / name, target / name, owner)
    elif stat.S_ISREG(info.st_mode) and info.st_mode & 0o004:
        target.parent.mkdir(parents=True, exist_ok=True)
        import shutil

        shutil.copyfile(source, target)
        target.chmod(info.st_mode & 0o755)
        os.chown(target, owner, owner)
