"""The steps that build a template, in order, each with all that decides its result."""

from __future__ import annotations

import hashlib
import io
import json
import posixpath
import shlex
import tarfile
from collections.abc import Mapping
from dataclasses import field

from skerry._model import Model
from skerry.templates.model import Command, Template

PYTHON = "/opt/python"
"""The virtual environment of `packages.pip`; belongs to `user`, who may install more."""
NPM = "/opt/npm"
"""The prefix of `packages.npm`; belongs to `user`."""
PATH = f"{PYTHON}/bin:{NPM}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LAYOUT = "1"
"""Part of each digest; raised when the steps below leave something else for the same template."""

_USER_ID = 1000
_WRITTEN = 946684800  # the year 2000: zip, and so every wheel, knows no time before 1980
_APT = """set -e
apt-get -q update
apt-get -q install -y --no-install-recommends {packages}
apt-get -q clean
rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin"""
_PIP = """set -e
test -x {python}/bin/python || python3 -m venv {python}
{python}/bin/python -m pip install --no-cache-dir --disable-pip-version-check --no-input {packages}"""
_NPM = """set -e
npm install --global --prefix {npm} --no-audit --no-fund --no-update-notifier --cache /tmp/npm {packages}
rm -rf /tmp/npm"""


class Step(Model):
    """Something to run in the sandbox that becomes the template: `sh -c run` in `cwd`; it must exit with 0."""

    name: str
    run: str
    user: str
    cwd: str = "/"
    env: Mapping[str, str] = field(default_factory=dict)
    """Beyond what the base and the provider set."""
    stdin: bytes = b""


def environment(template: Template) -> dict[str, str]:
    """What the template adds to the environment of its base, for steps and for sandboxes."""
    env = {"PATH": PATH}
    if template.packages.pip:
        env["VIRTUAL_ENV"] = PYTHON
    if template.packages.npm:
        env |= {"NPM_CONFIG_PREFIX": NPM, "NODE_PATH": f"{NPM}/lib/node_modules"}
    return env | dict(template.env)


def steps(template: Template) -> list[Step]:
    """What builds the template on its base: directories, apt, pip, npm, files, then its own scripts."""
    env = environment(template) | {"TEMPLATE_VERSION": template.version}
    packages = template.packages
    made = [Step(name="directories", run=_directories(template), user="root")]
    if packages.apt:
        quiet = env | {"DEBIAN_FRONTEND": "noninteractive", "DEBCONF_NOWARNINGS": "yes"}
        made.append(Step(name=_named("apt", packages.apt), run=_install(_APT, packages.apt), user="root", env=quiet))
    for kind, script, names in (("pip", _PIP, packages.pip), ("npm", _NPM, packages.npm)):
        if names:
            made.append(Step(name=_named(kind, names), run=_install(script, names), user="user", env=env))
    if template.files:
        unpack = "exec tar --extract --file - --directory / --numeric-owner --same-owner --no-overwrite-dir -p"
        made.append(Step(name="files", run=unpack, user="root", stdin=archive(template)))
    made += (
        Step(
            name=_script_name(number, command),
            run=command.script,
            user=command.user or template.user,
            cwd=template.workdir,
            env=env,
        )
        for number, command in enumerate(template.scripts.build, start=1)
    )
    return made


def archive(template: Template) -> bytes:
    """The files as a tar archive relative to /: the same bytes for the same files."""
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w", format=tarfile.PAX_FORMAT) as tar:
        seen: set[str] = set()
        for path in sorted(template.files):
            place, owner = template.place(path), template.owner(path)
            if owner == "user":
                for parent in _parents(place, template.workdir):
                    if parent not in seen:
                        seen.add(parent)
                        tar.addfile(_entry(parent, 0o755, owner, directory=True))
            data = template.files[path].data
            entry = _entry(place, template.files[path].mode, owner)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return output.getvalue()


def digest(template: Template, base_digest: str) -> str:
    """A hash over everything that decides what the build leaves.

    Names, descriptions, ports and scripts that run later are not part of it.
    """
    parts = [
        [step.run, step.user, step.cwd, sorted(step.env.items()), hashlib.sha256(step.stdin).hexdigest()]
        for step in steps(template)
    ]
    return hashlib.sha256(json.dumps([LAYOUT, base_digest, parts]).encode()).hexdigest()


def _directories(template: Template) -> str:
    mine = [PYTHON, NPM] if template.workdir in ("/workspace", "/root") else [PYTHON, NPM, template.workdir]
    return f"install -d -o {_USER_ID} -g {_USER_ID} {shlex.join(mine)}"


def _install(script: str, packages: tuple[str, ...]) -> str:
    return script.format(python=PYTHON, npm=NPM, packages=shlex.join(packages))


def _named(kind: str, packages: tuple[str, ...]) -> str:
    text = f"{kind}: {' '.join(packages)}"
    return text if len(text) <= 60 else f"{text[:59]}…"


def _script_name(number: int, command: Command) -> str:
    text = command.name or next(line.strip() for line in command.run.splitlines() if line.strip())
    return f"script {number}: {text if len(text) <= 50 else f'{text[:49]}…'}"


def _parents(place: str, workdir: str) -> list[str]:
    """The directories between the user's own ones and the file, outermost first."""
    own = next((top for top in (workdir, "/workspace", "/home/user") if place.startswith(f"{top}/")), None)
    parents: list[str] = []
    while own is not None and (place := posixpath.dirname(place)) != own:
        parents.append(place)
    return parents[::-1]


def _entry(path: str, mode: int, owner: str, *, directory: bool = False) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path.lstrip("/"))
    entry.mode, entry.mtime = mode, _WRITTEN
    entry.uid = entry.gid = _USER_ID if owner == "user" else 0
    if directory:
        entry.type = tarfile.DIRTYPE
    return entry
