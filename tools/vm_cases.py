"""The cases that `make vm-test` runs inside its virtual machine, before and after a shutdown with a running sandbox.

vm_cases.py [CASE …]     prints what the cases say, and for each one `row|CASE|RESULT|WHAT|REASON`
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

EXPECTED: Mapping[str, str] = {
    "::test_processes_beyond_the_limit_cannot_start": "forty processes do not start within its 1.5 s",
    "::test_the_lifetime_of_a_paused_sandbox_ends_and_that_of_a_stopped_one_does_not": "its 2 s end before the pause",
}
"""Tests that may fail here, by the end of their name, each with the reason. Any other failure fails the run."""

PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "timeout=1200")
KEPT = Path("/root/vm-kept")
"""A file that exists after the first boot: the name of the sandbox that ran when the machine was shut down."""


@dataclass(frozen=True, slots=True)
class Row:
    """The result of a case."""

    result: str
    what: str
    reason: str = ""


def say(text: str) -> None:
    print(text, flush=True)


def run(*command: str, timeout: float = 600.0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout)
    say(done.stdout)
    return done


def command(*arguments: str) -> Row:
    done = run(*arguments)
    return Row("passed" if done.returncode == 0 else "FAILED", f"exit {done.returncode}")


def tests(*selection: str) -> Row:
    """Some of the tree's tests, of which only those in EXPECTED may fail."""
    report = Path("/root/vm-report.xml")
    report.unlink(missing_ok=True)
    # straight to the serial line, since it takes long
    code = subprocess.run([*PYTEST, f"--junitxml={report}", *selection], stderr=subprocess.STDOUT).returncode
    if not report.exists():
        return Row("FAILED", f"pytest ended with {code}")
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    failed = [name_of(case) for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in cases)
    known = {name: reason for name in failed for end, reason in EXPECTED.items() if name.endswith(end)}
    unknown = [name for name in failed if name not in known]
    passed = len(cases) - len(failed) - skipped
    what = f"{passed} passed" + f", {len(failed)} failed" * bool(failed) + f", {skipped} skipped" * bool(skipped)
    reasons = "; ".join(f"{name}: {reason}" for name, reason in known.items())
    if unknown or not cases or (code != 0 and not failed):
        return Row("FAILED", f"{what}: {', '.join(unknown) or f'exit {code}'}", reasons)
    return Row("expected" if known else "passed", what, reasons)


def name_of(case: ElementTree.Element) -> str:
    return f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name', '')}"


def doctor() -> Row:
    """First of all: nothing has loaded a module yet."""
    fresh = not re.search(r"\soverlay$", Path("/proc/filesystems").read_text(), re.MULTILINE)
    row = command("skerry", "doctor")
    return Row(row.result, row.what + (", overlay was not loaded before" if fresh else ", overlay was loaded before"))


def half_made_group() -> Row:
    """The parent group as a process leaves it that dies before it gives the group its controllers."""
    parent = Path("/sys/fs/cgroup/skerry")
    if parent.is_dir():
        parent.rmdir()
    parent.mkdir()
    return command("skerry", "run", "--memory", "64MB", "--", "true")


def cgroup_namespace() -> Row:
    """As in a container: the root of the visible cgroups has processes."""
    mount = "umount -l /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup"
    inside = f"{mount}; cat /sys/fs/cgroup/cgroup.procs; skerry doctor; skerry run -- id"
    service = ["systemd-run", "--quiet", "--pipe", "--wait", "-p", "Delegate=yes"]
    keep = [f"--setenv={name}={os.environ[name]}" for name in ("PATH", "HOME", "LANG")]
    return command(*service, *keep, "unshare", "--cgroup", "--mount", "sh", "-euc", inside)


def protected_groups() -> Row:
    """A service with ProtectControlGroups=yes gets a typed error that says so."""
    service = ["systemd-run", "--quiet", "--pipe", "--wait", "-p", "ProtectControlGroups=yes"]
    keep = [f"--setenv={name}={os.environ[name]}" for name in ("PATH", "HOME", "LANG")]
    done = run(*service, *keep, "skerry", "run", "--", "true")
    typed = done.returncode == 125 and "(PROVIDER_UNAVAILABLE)" in done.stdout
    return Row("passed" if typed else "FAILED", f"exit {done.returncode}")


def home_in_memory() -> Row:
    """A SKERRY_HOME on tmpfs works, or the doctor says from which kernel on it does."""
    os.environ["SKERRY_HOME"] = "/dev/shm/home"
    done = run("skerry", "doctor")
    run("skerry", "storage", "unmount")
    del os.environ["SKERRY_HOME"]
    said = done.returncode == 1 and "tmpfs" in done.stdout
    return Row("passed" if done.returncode == 0 or said else "FAILED", "refused by the doctor" if said else "works")


def scans() -> int:
    """How often the kernel has counted all that is in a file system; it does so twice at most for a new pool."""
    text = subprocess.run(["dmesg"], capture_output=True, text=True, check=True).stdout
    return text.count("qgroup scan completed")


def rescans() -> Row:
    """The accounts of a pool are counted when it is made, and never again."""
    command("skerry", "run", "--", "true")
    before = scans()
    for _ in range(3):
        command("skerry", "run", "--", "true")
    again = scans() - before
    return Row("FAILED" if again else "passed", f"{again} in three uses of a pool")


def service() -> Row:
    """The server as a service: a sandbox outlives its restart, and the machine's own commands see the same pool."""
    key = 'Authorization: Bearer $(cat "${SKERRY_HOME:-/var/lib/skerry}/server/admin.key")'
    ask = f'curl -sSf -H "{key}" -H "Content-Type: application/json" http://127.0.0.1:7411/v1/sandboxes'
    script = f"""
        skerry up --install
        {ask} -d '{{"name": "served"}}'
        {ask}/served/exec -d '{{"command": "echo kept > kept; sleep 1000 > /dev/null 2>&1 & echo"}}'
        systemctl restart skerry
        until curl -sSf http://127.0.0.1:7411/health; do sleep 0.5; done
        {ask}/served/exec -d '{{"command": "cat kept"}}' | grep kept
        test "$(skerry exec served -- cat kept)" = kept
        skerry run --memory 64MB -- true
        skerry up --uninstall
        skerry exec served -- cat kept
        skerry rm served
        ! systemctl cat skerry
    """
    return command("bash", "-euxc", script)


CASES: Mapping[str, Callable[[], Row]] = {
    "doctor": doctor,
    "quickstart": lambda: command("python", "examples/quickstart.py"),
    "half-made-group": half_made_group,
    "cgroup-namespace": cgroup_namespace,
    "protected-groups": protected_groups,
    "home-in-memory": home_in_memory,
    "service": service,
    "cgroups": lambda: tests("tests/providers/local/limits/test_cgroup.py", "tests/providers/local/test_doctor.py"),
    "audit": lambda: command("skerry", "audit"),
    "bombs": lambda: tests("tests/providers/local/isolation/test_bombs.py"),
    "disk-limits": lambda: tests("tests/providers/local/storage/test_storage.py", "-k", "limit or account"),
    "lifecycle": lambda: tests(
        "tests/providers/local/sandbox/test_lifecycle.py", "-k", "sigterm or restart_changes or pause"
    ),
    "rescans": rescans,
    "conformance": lambda: tests("tests/conformance/test_local.py"),
}


def left() -> Row:
    groups = [str(path) for path in Path("/sys/fs/cgroup/skerry").glob("sb-*")]
    return Row("FAILED" if groups else "passed", ", ".join(groups) or "no cgroup")


def start_lasting() -> Row:
    """Start the sandbox that runs when the machine is shut down: idle but for one process."""
    done = run("skerry", "create", "--name", "lasting", "--lifetime", "7200")
    run("skerry", "exec", "lasting", "--", "sh", "-c", "echo precious > kept; sleep 1000 >&- 2>&- & echo")
    return Row("passed" if done.returncode == 0 else "FAILED", done.stdout.strip())


def after_the_boot() -> Row:
    """Check that the sandbox was stopped in order, and has its files."""
    done = subprocess.run(["skerry", "info", "lasting", "-o", "json"], capture_output=True, text=True, timeout=600)
    say(done.stdout + done.stderr)
    info = json.loads(done.stdout)
    kept = run("skerry", "exec", "lasting", "--", "cat", "kept").stdout
    run("skerry", "rm", "lasting")
    well = info["state"] == "stopped" and "SIGTERM" in (info["reason"] or "") and "precious" in kept
    return Row("passed" if well else "FAILED", f"{info['state']}: {info['reason']}")


def report(name: str, look: Callable[[], Row]) -> None:
    say(f"== {name}")
    began = time.monotonic()
    try:
        row = look()
    except (subprocess.TimeoutExpired, OSError, ValueError, KeyError) as error:  # run the other cases all the same
        row = Row("FAILED", f"{type(error).__name__}: {error}")
    text = "|".join(part.replace("|", " ").replace("\n", " ") for part in (row.result, row.what, row.reason))
    say(f"row|{name} ({time.monotonic() - began:.0f} s)|{text}")


def about() -> str:
    pretty = next(line for line in Path("/etc/os-release").read_text().splitlines() if line.startswith("PRETTY_NAME"))
    systemd = subprocess.run(["systemctl", "--version"], capture_output=True, text=True).stdout.partition("\n")[0]
    kind = subprocess.run(["stat", "-fc", "%T", "/sys/fs/cgroup"], capture_output=True, text=True).stdout.strip()
    return f"{pretty.partition('=')[2]}, Linux {os.uname().release}, {systemd}, {kind} at /sys/fs/cgroup"


def main(wanted: Sequence[str]) -> None:
    if KEPT.exists():
        report("after the boot", after_the_boot)
        say("vm-test: complete")
        subprocess.run(["systemctl", "poweroff", "--force"], check=True)
        return
    say(f"about|{about()}")
    KEPT.touch()
    for name in wanted:
        if name not in CASES:
            say(f"row|{name}|FAILED|there is no such case: {', '.join(CASES)}|")
    for name, look in CASES.items():
        if not wanted or name in wanted:
            report(name, look)
    report("nothing is left", left)
    report("a sandbox that runs at the shutdown", start_lasting)
    subprocess.run(["systemctl", "poweroff"], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
