"""Makes a SKERRY_HOME with everything in it that an upgrade must keep, and packs it: `make_home.py KIND TARGET.tar.zst`.

Run with a released tree's own Python, by its command line only, so that it works unchanged on every version:
`.venv/bin/python tests/upgrade/make_home.py pool tests/upgrade/homes/VERSION-pool.tar.zst`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

PASSWORD = "correct horse battery"


def main(kind: str, target: Path) -> None:
    home = Path(tempfile.mkdtemp(prefix="sk-", dir="/var/tmp")) / "home"
    home.mkdir(mode=0o700)
    os.environ |= {"SKERRY_HOME": str(home), "SKERRY_STORAGE": kind, "SKERRY_LOGIN": str(home.parent / "login.json")}
    os.environ |= {"SKERRY_POOL_SIZE": "300MB", "SKERRY_SERVER_PORT": "0"}
    made = _serve(home)
    made |= _keep()
    (home / "made.json").write_text(json.dumps(made, indent=2))
    if kind == "pool":
        _skerry("storage", "unmount")
    pack = ["tar", "--sparse", "--xattrs", "--acls", "--numeric-owner", "-C", str(home.parent), "-cf", "-", "home"]
    with subprocess.Popen(pack, stdout=subprocess.PIPE) as tar, target.open("wb") as out:
        subprocess.run(["zstd", "-19", "-q"], stdin=tar.stdout, stdout=out, check=True)
    subprocess.run(["rm", "-r", str(home.parent)], check=True)


def _skerry(*args: str, **options: str) -> str:
    program = Path(sys.executable).with_name("skerry")
    return subprocess.run([program, *args], check=True, stdout=subprocess.PIPE, text=True, **options).stdout.strip()  # type: ignore[call-overload,no-any-return]


def _serve(home: Path) -> dict[str, str]:
    """What users of a server have: accounts, a project, a sandbox each."""
    program = Path(sys.executable).with_name("skerry")
    with subprocess.Popen([program, "up"], stdout=subprocess.DEVNULL) as server:
        try:
            running = home / "server" / "run.json"
            while not running.exists():
                time.sleep(0.1)
            time.sleep(1)
            url = json.loads(running.read_text())["url"]
            admin = (home / "server" / "admin.key").read_text().strip()
            _call(url, admin, "POST", "/v1/users", {"name": "mira", "password": PASSWORD})
            bob = _call(url, admin, "POST", "/v1/users", {"name": "bob", "password": PASSWORD})["id"]
            key = _call(url, admin, "POST", "/v1/users/mira/link", {})["url"].partition("#")[2]
            cookie = _sign_in(url, key)
            mira = _call(url, cookie, "POST", "/v1/keys", {"name": "laptop"})["key"]
            _call(url, cookie, "POST", "/v1/projects", {"name": "team"})
            _call(url, cookie, "PUT", f"/v1/projects/team/members/{bob}", {"role": "write"})
            own = _call(url, mira, "POST", "/v1/sandboxes", {"name": "hello"})["id"]
            shared = _call(url, mira, "POST", "/v1/sandboxes?project=team", {"name": "shared"})["id"]
            for sandbox in (own, shared):
                _call(url, mira, "POST", f"/v1/sandboxes/{sandbox}/exec", {"command": f"echo {sandbox} > whose"})
                _call(url, mira, "POST", f"/v1/sandboxes/{sandbox}/stop", {})
        finally:
            server.terminate()
    return {"key": mira, "own": own, "shared": shared}


def _sign_in(url: str, link: str) -> str:
    body = json.dumps({"link": link}).encode()
    headers = {"content-type": "application/json", "sec-fetch-site": "same-origin", "origin": url}
    asked = urllib.request.Request(f"{url}/v1/session", body, headers)
    with urllib.request.urlopen(asked) as answer:
        return str(answer.headers["set-cookie"].partition(";")[0])


def _call(url: str, who: str, method: str, path: str, body: object) -> dict[str, str]:
    headers = {"content-type": "application/json", "sec-fetch-site": "same-origin", "origin": url}
    headers |= {"cookie": who} if "=" in who else {"authorization": f"Bearer {who}"}
    asked = urllib.request.Request(url + path, json.dumps(body).encode(), headers, method=method)
    try:
        with urllib.request.urlopen(asked) as answer:
            return dict(json.loads(answer.read() or b"{}"))
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{method} {path}: {error.read().decode()}") from error


def _keep() -> dict[str, str]:
    """What a person on the machine has: a snapshot, a clone of it, a volume, an archive, one that is killed."""
    _skerry("volume", "create", "data", *([] if os.environ["SKERRY_STORAGE"] == "directory" else ["--size", "20MB"]))
    box = _skerry("create", "--name", "box", "-v", "data:/data", "--env", "COLOUR=green")
    _skerry("exec", "box", "--", "sh", "-c", "echo first > note; echo kept > /data/kept")
    snapshot = _skerry("snapshot", "create", "box", "before")
    _skerry("exec", "box", "--", "sh", "-c", "echo second > note")
    copy = _skerry("clone", "box", "--name", "copy")
    _skerry("stop", "box", "copy")
    cold = _skerry("create", "--name", "cold")
    _skerry("exec", "cold", "--", "sh", "-c", "echo cold > note")
    _skerry("archive", "cold")
    lost = _skerry("create", "--name", "lost")
    _skerry("exec", "lost", "--", "sh", "-c", "echo lost > note; sync")
    made = {"box": box, "copy": copy, "cold": cold, "lost": lost, "snapshot": snapshot}
    _end(lost)
    _skerry("ps")  # finds that it has failed
    return made


def _end(sandbox: str) -> None:
    """As a machine that loses its power would."""
    record = json.loads((Path(os.environ["SKERRY_HOME"]) / "sandboxes" / sandbox / "record.json").read_text())
    os.kill(record["init"]["pid"], 9)
    time.sleep(1)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).resolve())
