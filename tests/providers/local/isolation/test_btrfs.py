"""btrfs's own requests from inside: a subvolume that a sandbox makes would be outside of its disk limit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from skerry import Sandbox, Volumes
from skerry.audit.attempt import Answer
from tests.providers.local.isolation.conftest import tried

REQUESTS = {
    "make a subvolume": (0x5000940E, 'struct.pack("q", 0) + b"nested"'),
    "make a subvolume, second form": (0x50009418, 'struct.pack("qQQ4Q", 0, 0, 0, 0, 0, 0, 0) + b"nested"'),
    "make a snapshot": (0x50009417, 'struct.pack("qQQ4Q", fd, 0, 0, 0, 0, 0, 0) + b"nested"'),
    "remove a subvolume": (0x5000940F, 'struct.pack("q", 0) + b"nested"'),
    "commit the whole file system": (0x80089418, "b''"),
    "start a balance": (0x5000940C, "b''"),
    "look into the trees": (0xD0009411, "b''"),
}


@pytest.fixture(scope="module")
def with_volume() -> Iterator[Sandbox]:
    Volumes().create("btrfs-requests")
    try:
        with Sandbox.create(timeout=600, volumes={"/data": "btrfs-requests"}) as sandbox:
            yield sandbox
    finally:
        Volumes().delete("btrfs-requests")


@pytest.mark.parametrize("where", ["/data", "/workspace"])
@pytest.mark.parametrize("what", REQUESTS)
def test_a_request_to_btrfs_is_refused(with_volume: Sandbox, attacker: str, what: str, where: str) -> None:
    request, argument = REQUESTS[what]
    body = f"""
import struct
fd = os.open({where!r}, os.O_RDONLY)
if libc.ioctl(fd, ctypes.c_ulong({request}), ctypes.create_string_buffer({argument}, 4096)) < 0:
    raise OSError(ctypes.get_errno(), "")
"""
    # crun's filter refuses it; for runc, whose rules can only allow, it does not exist
    assert tried(with_volume, body, attacker) in (Answer("error", "EPERM"), Answer("error", "ENOSYS"))


def test_files_can_still_share_their_data(with_volume: Sandbox, attacker: str) -> None:
    done = with_volume.exec(
        "cd /data && head -c 1000000 /dev/urandom > from && cp --reflink=always from to && cmp from to && rm -f from to",
        user=attacker,
    )
    assert done.ok, done.stderr
