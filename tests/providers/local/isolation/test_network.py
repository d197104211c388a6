"""Attacks on the network: none by default; with network="open", public addresses only."""

from __future__ import annotations

import fcntl
import ipaddress
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from skerry import Sandbox
from skerry.providers.local.engine import Engine
from skerry.providers.local.host import binary
from skerry.providers.local.limits import network
from tests.providers.local.isolation.conftest import Attack

NS_GET_USERNS = 0xB701
CONNECT = 's = socket.create_connection(("{host}", {port}), 3); return s'


@pytest.fixture(scope="module")
def listener() -> Iterator[int]:
    """A server on every address of the machine."""
    with socket.create_server(("", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture(scope="module")
def opened() -> Iterator[Sandbox]:
    with Sandbox.create(network="open", timeout=600) as sandbox:
        yield sandbox


def connect(sandbox: Sandbox, host: str, port: int, user: str = "user") -> str:
    code = "import socket, sys\ntry: socket.create_connection((sys.argv[1], int(sys.argv[2])), 2); print('BREACH')\n"
    code += "except OSError as e: print('blocked', e)"
    return sandbox.exec(["python3", "-c", code, host, str(port)], timeout=20, user=user).stdout


def reached(sandbox: Sandbox, targets: list[tuple[str, int]], user: str) -> list[str]:
    """Those of the hosts that accept a connection; all are tried at the same time, and sent a datagram too."""
    code = "import json, socket, sys\nfrom concurrent.futures import ThreadPoolExecutor as Pool\ndef reach(target):\n"
    code += (
        " try: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', tuple(target))\n except OSError: pass\n"
    )
    code += " try: socket.create_connection(tuple(target), 3); return target[0]\n except OSError: pass\n"
    code += "print(json.dumps([host for host in Pool(30).map(reach, json.loads(sys.argv[1])) if host]))"
    done = sandbox.exec(["python3", "-c", code, json.dumps(targets)], timeout=30, user=user, check=True)
    return list(json.loads(done.stdout))


def eventually(true: Callable[[], bool], within: float = 60.0) -> bool:
    until = time.monotonic() + within
    while not true():
        if time.monotonic() > until:
            return False
    return True


def test_without_network_nothing_is_reached(attack: Attack, listener: int) -> None:
    assert attack(CONNECT.format(host="127.0.0.1", port=listener)) == "ECONNREFUSED"
    assert attack(CONNECT.format(host="203.0.113.1", port=80)) == "ENETUNREACH"
    assert attack(CONNECT.format(host="::1", port=listener)) == "ECONNREFUSED"
    attack('s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(("203.0.113.1", 53)); return s')


def test_without_network_there_is_only_loopback(sandbox: Sandbox) -> None:
    devices = sandbox.exec("ls /sys/class/net").stdout.split()
    assert devices == ["lo"]


def test_the_network_belongs_to_the_sandbox_and_not_to_the_machine(sandbox: Sandbox) -> None:
    first = Engine().lookup.running(sandbox.id).init
    assert first is not None
    with open(f"/proc/{first.pid}/ns/net") as network:
        owner = fcntl.ioctl(network, NS_GET_USERNS)
    try:
        assert os.path.samestat(os.stat(owner), os.stat(f"/proc/{first.pid}/ns/user"))
        assert not os.path.samestat(os.stat(owner), os.stat("/proc/self/ns/user"))
    finally:
        os.close(owner)


def test_a_server_in_one_sandbox_is_not_seen_in_another(sandbox: Sandbox, neighbour: Sandbox) -> None:
    server = (
        "import socket,time; s = socket.create_server(('127.0.0.1', 8000)); print('up', flush=True); time.sleep(60)"
    )
    process = sandbox.processes.spawn(["python3", "-c", server])
    try:
        for chunk in process:
            assert chunk.data == b"up\n"
            break
        assert connect(sandbox, "127.0.0.1", 8000).startswith("BREACH")
        assert connect(neighbour, "127.0.0.1", 8000).startswith("blocked")
    finally:
        process.kill()


def test_open_network_does_not_reach_the_machine(opened: Sandbox, listener: int) -> None:
    gateway = opened.exec("ip route | awk '/default/ {print $3}'").stdout.strip()
    assert gateway
    for host in (gateway, "127.0.0.1"):
        assert connect(opened, host, listener).startswith("blocked")


PRIVATE = (
    *("10.251.78.2", "172.29.77.2", "192.168.251.2", "169.254.77.2", "100.100.77.2", "198.18.77.2", "192.88.99.2"),
    "168.63.129.16",
)
DIRECT = "11.251.78.2"
PUBLIC = "11.251.77.2"
SERVER = """
import socket, threading
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(("11.251.77.2", 8000))
def answer():
    count = 0
    while True:
        data, client = datagrams.recvfrom(100)
        count += 1
        if data == b"?":
            datagrams.sendto(str(count).encode(), client)
threading.Thread(target=answer, daemon=True).start()
reader = socket.create_server(("", 8001))
def read():
    while True:
        with reader.accept()[0] as connection:
            while connection.recv(65536):
                pass
threading.Thread(target=read, daemon=True).start()
server = socket.create_server(("", 8000), backlog=4096)
print("up", flush=True)
while True:
    server.accept()
"""


@pytest.fixture(scope="module")
def lan() -> Iterator[int]:
    """A machine of the test's own, in a network namespace, that has all of these addresses; its server's port.

    This machine has an address in DIRECT's network. The way to the others leads through a gateway.
    """
    name = f"sktest{os.getpid()}"
    link = f"skt{os.getpid() % 10**6}"
    inside = ["ip", "netns", "exec", name]

    def ip(command: list[str], lines: list[str]) -> None:
        subprocess.run(
            [*command, "ip", "-batch", "-"] if command else ["ip", "-batch", "-"],
            input="\n".join(lines),
            text=True,
            check=True,
        )

    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        outside = [f"addr add {address}/30 dev {link}" for address in ("10.251.77.1", "11.251.78.1")]
        routes = [f"route add {address}/32 via 10.251.77.2" for address in (*PRIVATE, PUBLIC)]
        ip(
            [],
            [
                f"link add {link} type veth peer name eth0 netns {name}",
                *outside,
                f"link set {link} mtu 1400 up",
                *routes,
            ],
        )
        own = [f"addr add {address}/32 dev lo" for address in (*PRIVATE, PUBLIC)]
        near = [f"addr add {address}/30 dev eth0" for address in ("10.251.77.2", DIRECT)]
        ip(inside, ["link set lo up", *own, *near, "link set eth0 up", "route add default via 10.251.77.1"])
        with subprocess.Popen([*inside, sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as running:
            try:
                assert running.stdout is not None and running.stdout.readline() == "up\n"
                yield 8000
            finally:
                running.kill()
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


@pytest.mark.parametrize("user", ["user", "root"])
def test_open_network_does_not_reach_private_ranges(opened: Sandbox, lan: int, user: str) -> None:
    """The same machine under another address is reached, so it is the range that is refused."""
    for host in PRIVATE:
        socket.create_connection((host, lan), 5).close()  # the machine itself gets there
    assert reached(opened, [(host, lan) for host in (*PRIVATE, PUBLIC)], user) == [PUBLIC]


def test_open_network_does_not_reach_a_public_network_that_the_machine_is_in(lan: int) -> None:
    with Sandbox.create(network="open", timeout=300) as sandbox:
        socket.create_connection((DIRECT, lan), 5).close()
        assert connect(sandbox, PUBLIC, lan).startswith("BREACH")
        assert connect(sandbox, DIRECT, lan).startswith("blocked")


def test_networks_of_examples_are_refused_but_where_they_are_the_internet() -> None:
    link = {"dst": "11.1.2.0/24", "dev": "eth0", "protocol": "kernel", "scope": "link", "prefsrc": "11.1.2.3"}
    ordinary = [{"dst": "default", "gateway": "11.1.2.1", "dev": "eth0"}, link]
    laboratory = [
        {"dst": "default", "gateway": "192.0.2.1", "dev": "eth0"},
        {**link, "dst": "192.0.2.0/24", "prefsrc": "192.0.2.2"},
        {"dst": "0.0.0.0/1", "dev": "wg0", "scope": "link"},
    ]

    def reached(address: str, routes: list[dict[str, str]]) -> bool:
        return not any(ipaddress.ip_address(address) in each for each in network.refused(routes))

    for address in ("192.0.2.9", "198.51.100.9", "203.0.113.9", "11.1.2.9"):
        assert not reached(address, ordinary)
    assert reached("11.1.3.9", ordinary)
    assert reached("203.0.113.9", laboratory)
    assert reached("8.8.8.8", laboratory)
    assert not reached("192.0.2.9", laboratory)


def tracked() -> int:
    """Connections that this machine follows."""
    return int(Path("/proc/sys/net/netfilter/nf_conntrack_count").read_text())


FLOOD = """
import socket, sys
sent = 0
for number in range(40):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as flood:
        for port in range(9000, 9500):
            flood.sendto(b"x", (sys.argv[1], port))
            sent += 1
print(sent)
"""


@pytest.mark.parametrize("user", ["user", "root"])
def test_open_network_does_not_fill_the_machine_s_table_of_connections(lan: int, user: str) -> None:
    with Sandbox.create(network="open", timeout=300) as sandbox, Sandbox.create(network="open", timeout=300) as other:
        before = tracked()
        start = time.monotonic()
        flood = sandbox.exec(["python3", "-c", FLOOD, PUBLIC], user=user, timeout=60)
        assert flood.stdout == "20000\n"
        begun = 500 + 50 * (time.monotonic() - start)
        assert tracked() - before < begun + 100
        # another sandbox, and a third made now, which writes the rules again, begin theirs as before
        assert connect(other, PUBLIC, lan).startswith("BREACH")
        with Sandbox.create(network="open", timeout=300) as third:
            assert connect(third, PUBLIC, lan).startswith("BREACH")
        sandbox.exec(["python3", "-c", FLOOD, PUBLIC], user=user, timeout=60)
        begun = 500 + 50 * (time.monotonic() - start)
        assert tracked() - before < begun + 200
        # and so does the first, a little later
        assert eventually(lambda: connect(sandbox, PUBLIC, lan).startswith("BREACH"))


def test_a_sandbox_keeps_no_more_connections_than_its_share(lan: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a smaller share than the real one, which takes a minute to use up."""
    monkeypatch.setattr(network, "TRACKED", 200)
    code = (
        "import socket, sys\nheld, failed = [], 0\n"
        "while failed < 3:\n"
        " s = socket.socket(); s.settimeout(0.8)\n"
        " try: s.connect((sys.argv[1], 8000)); held.append(s); failed = 0\n"  # a busy machine may be late
        " except TimeoutError: failed += 1\n"
        "print(len(held), flush=True)\n"
    )
    with Sandbox.create(network="open", timeout=300) as sandbox:
        # an earlier sandbox with the same address has an entry with the real share
        subprocess.run(["nft", "flush", "set", "inet", "skerry", "tracked"], check=True)
        for _ in range(2):  # those of a program that has ended are nobody's
            many = sandbox.exec(["python3", "-c", code, PUBLIC], timeout=60)
            assert 190 < int(many.stdout) <= 200, many.stderr


def test_one_way_datagrams_of_one_socket_are_not_slowed(lan: int) -> None:
    code = (
        "import socket, sys, time\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(10)\n"
        "s.connect((sys.argv[1], 8000))\n"
        "for _ in range(100):\n"
        " for _ in range(20): s.send(b'.')\n"
        " time.sleep(0.01)\n"
        "s.send(b'?'); print(s.recv(10).decode())"
    )
    with Sandbox.create(network="open", timeout=300) as sandbox:
        done = sandbox.exec(["python3", "-c", code, PUBLIC], timeout=30)
        assert int(done.stdout) > 1800, done.stderr


def test_packets_that_are_too_large_for_the_way_are_made_smaller(lan: int) -> None:
    """The machine says so, which must reach the sandbox; its own link takes larger ones."""
    code = (
        "import array, fcntl, socket, sys, time\ns = socket.create_connection((sys.argv[1], 8001), 5)\ns.sendall(bytes(5000))\n"
        "end, left = time.monotonic() + 10, array.array('i', [1])\n"
        "while left[0] and time.monotonic() < end: time.sleep(0.05); fcntl.ioctl(s, 0x5411, left)\n"
        "print(left[0])"
    )
    with Sandbox.create(network="open", timeout=300) as sandbox:
        assert sandbox.exec(["python3", "-c", code, PUBLIC], timeout=30).stdout == "0\n"


def test_open_sandboxes_do_not_reach_each_other(opened: Sandbox) -> None:
    with Sandbox.create(network="open", timeout=300) as other:
        address = other.exec("ip -4 -o addr show eth0 | awk '{print $4}' | cut -d/ -f1").stdout.strip()
        assert address.startswith("10.213.")
        server = "import socket,time; s = socket.create_server(('', 8000)); print('up', flush=True); time.sleep(60)"
        process = other.processes.spawn(["python3", "-c", server])
        for chunk in process:
            assert chunk.data == b"up\n"
            break
        assert connect(other, address, 8000).startswith("BREACH")
        assert connect(opened, address, 8000).startswith("blocked")


def test_open_network_installs_a_package(opened: Sandbox) -> None:
    made = opened.exec(
        "python3 -m venv /tmp/v && /tmp/v/bin/pip install -q six && /tmp/v/bin/python -c 'import six'", timeout=110
    )
    assert made.exit_code == 0, made.stderr


def test_the_forwarder_and_the_link_end_with_the_sandbox() -> None:
    sandbox = Sandbox.create(network="open", timeout=300)
    link = f"{network.PREFIX}{Engine().lookup.running(sandbox.id).slot}"
    assert link in {name for _, name in socket.if_nameindex()}
    sandbox.destroy()
    assert link not in {name for _, name in socket.if_nameindex()}


def test_names_fail_at_once_where_no_resolver_can_be_reached() -> None:
    """The forwarder's own namespace is one without a route, as on a machine without a network."""
    up = "ip link set lo up && echo up && exec sleep 300"
    with subprocess.Popen(["unshare", "--net", "sh", "-c", up], stdout=subprocess.PIPE) as inside:
        try:
            assert inside.stdout is not None and inside.stdout.readline() == b"up\n"
            forwarder = [binary("dns"), f"pid={inside.pid}", "server=192.0.2.1"]
            subprocess.run(["unshare", "--net", *forwarder], check=True, timeout=60)
            ask = (
                "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(60)\n"
                "s.sendto(bytes.fromhex('abcd01000001000000000000') + b'\\4host\\0\\0\\1\\0\\1', ('127.0.0.53', 53))\n"
                "print(s.recv(512).hex())"
            )
            command = ["nsenter", f"--net=/proc/{inside.pid}/ns/net", sys.executable, "-c", ask]
            answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
            assert answer.startswith("abcd8182")  # the same number, an answer, the server has failed
        finally:
            inside.kill()
