"""The commands `up`, `status`, `down`, `backup` and `config show`: a server on this machine."""

from __future__ import annotations

import os
import signal
import sys
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skerry.cli import options
from skerry.cli.declare import Option, Seconds
from skerry.cli.options import Format
from skerry.cli.runtime import fail_as_told
from skerry.cli.terminal.output import ago, note, print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from skerry.server import Instance, Started

PATIENCE = 60.0
"""Seconds that a server may take to start in the background, or to end."""

CONFIG_HELP = """Show the server's configuration.

\b
Example:
  skerry config show
"""

config = typer.Typer(name="config", help=CONFIG_HELP, rich_markup_mode=None, add_completion=False)

Host = Annotated[str | None, typer.Option("--host", metavar="ADDRESS", help="Listen on this address.")]
Port = Annotated[
    int | None, typer.Option("--port", "-p", metavar="N", help="Listen on this port; 0 means any free port.")
]
Tls = Annotated[bool | None, typer.Option("--tls", help="Serve HTTPS, with a certificate of a local authority.")]
Cert = Annotated[str | None, typer.Option("--tls-cert", metavar="FILE", help="Use your own certificate chain, in PEM.")]
CertKey = Annotated[str | None, typer.Option("--tls-key", metavar="FILE", help="Use this key for --tls-cert, in PEM.")]
PublicUrl = Annotated[
    str | None, typer.Option("--public-url", metavar="URL", help="Set the address that users open, behind a proxy.")
]
LogFormat = Annotated[
    str | None, typer.Option("--log-format", metavar="text|json", help="Write the log in this format.")
]


def up(
    host: Host = None,
    port: Port = None,
    tls: Tls = None,
    tls_cert: Cert = None,
    tls_key: CertKey = None,
    public_url: PublicUrl = None,
    log_format: LogFormat = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Run in the background.")] = False,
    link: Annotated[
        bool | None, typer.Option("--link/--no-link", help="Print the sign-in link; by default on a terminal only.")
    ] = None,
    install: Annotated[
        bool, typer.Option("--install", help="Install and start it as a systemd service, with these options.")
    ] = False,
    uninstall: Annotated[bool, typer.Option("--uninstall", help="Stop and remove that service.")] = False,
    output: options.Output = Format.TEXT,
) -> None:
    """Serve sandboxes of this machine over HTTP, until Ctrl-C.

    Prints the address, a line for curl, and on a terminal a link that signs the administrator in once. Other output may
    be read by others later, so there `skerry user link` makes the link. Settings that are not given come from
    SKERRY_SERVER_* in the environment and from server.toml in SKERRY_HOME: see `skerry config show`.

    \b
    Example:
      skerry up
      skerry up --detach --port 8080
      skerry up --install
      skerry up --host 0.0.0.0 --tls --public-url https://10.0.0.5:7411
    """
    flags = {
        "host": host,
        "port": port,
        "tls": tls,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "public_url": public_url,
        "log_format": log_format,
    }
    shows_link = sys.stdout.isatty() if link is None else link
    if detach + install + uninstall > 1:
        raise typer.BadParameter("give one of --detach, --install and --uninstall")
    if install or uninstall:
        _change_service(flags, output, install=install)
        return
    if detach:
        _start_detached(flags, output, link=shows_link)
        return

    def serve() -> None:
        need_server()
        from skerry.server import configure_logs, load_settings, run_server

        settings, _ = load_settings(flags=flags)
        configure_logs(settings)
        run_server(settings, lambda started: _tell(started, output), link=shows_link)

    fail_as_told(serve, output=output)


def need_server() -> None:
    """Raises ProviderUnavailable if the extra is not installed."""
    try:
        import argon2  # noqa: F401
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
        import uvloop  # noqa: F401
    except ImportError as error:
        from skerry.cli.extras import install_line
        from skerry.core import ProviderUnavailable

        raise ProviderUnavailable(
            f"the server needs a package that is not installed: {error.name}", hint=install_line("server")
        ) from None


def _tell(started: Started, output: Format) -> None:
    certificates = started.certificates
    if output is Format.JSON:
        ca = None if certificates is None else str(certificates.ca)
        print_json({"url": started.url, "link": started.link, "key_file": str(started.key_file), "ca_file": ca})
    else:
        print(f"\nSkerry serves at {started.url}\n")
        if certificates is not None:
            print(f"The certificate's authority is {certificates.ca}\n  SHA-256 {certificates.fingerprint}\n")
        if started.link is not None:
            print(f"Sign in, once, within an hour:\n  {started.link}\n")
        else:
            print(f"To sign in, make a link:\n  skerry user link {quote(started.admin)}\n")
        print(f"Make a sandbox and run a command in it:\n  {curl_line(started)}\n")
        print(f"From Python and the command line on this machine:\n  {export_line(started)}", flush=True)
    sys.stdout.flush()


def export_line(started: Started) -> str:
    ca = "" if started.certificates is None else f" SKERRY_CA_FILE={quote(str(started.certificates.ca))}"
    return f'export SKERRY_URL={started.url} SKERRY_API_KEY="$(cat {quote(str(started.key_file))})"{ca}'


def curl_line(started: Started) -> str:
    """A line that works as printed, and repeatedly: the same idempotency key means the same sandbox."""
    ca = "" if started.certificates is None else f" --cacert {quote(str(started.certificates.ca))}"
    key = f'"Authorization: Bearer $(cat {quote(str(started.key_file))})"'
    common = f'curl -sSf{ca} -H {key} -H "Content-Type: application/json"'
    create = f"{common} -H 'Idempotency-Key: hello' -d '{{\"name\": \"hello\"}}' {started.url}/v1/sandboxes"
    run_server = f'{common} -d \'{{"command": "echo hello from $(hostname)"}}\' {started.url}/v1/sandboxes/hello/exec'
    return f"{create} && {run_server}"


def _start_detached(flags: Mapping[str, object], output: Format, *, link: bool) -> None:
    """Run the same command without --detach, in its own session, with its log in a file."""
    import re
    import subprocess
    import time

    def work() -> int:
        need_server()
        from skerry.core import ProviderUnavailable
        from skerry.server import running_server, server_taken

        directory = _directory()
        if (other := _running()) is not None:
            raise server_taken(other)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = directory / "log"
        options = [*_given(flags), "--link" if link else "--no-link"]
        with open(os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600), "ab") as target:
            begun = os.fstat(target.fileno()).st_size
            process = subprocess.Popen(
                [sys.executable, "-m", "skerry", "up", f"--output={output}", *options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=target,
                start_new_session=True,
            )
        until = time.monotonic() + PATIENCE
        while (found := running_server(directory)) is None or found.pid != process.pid or not found.url:
            if process.poll() is not None or time.monotonic() > until:
                process.kill()
                said = _end_of(log, begun)
                if told := re.search(r'^(?:error: |{"error": ).*', said, re.MULTILINE | re.DOTALL):
                    sys.stderr.write(told[0])  # with its own code and hint
                    return 1
                raise ProviderUnavailable(f"the server did not start: {said[-300:]}", hint=f"its log is {log}")
            time.sleep(0.05)
        assert process.stdout is not None
        # The server prints its lines before it announces itself, and nothing later, so all of them are here.
        os.set_blocking(process.stdout.fileno(), False)
        sys.stdout.write((process.stdout.read() or b"").decode())
        if output is Format.TEXT:
            note(f"process {process.pid}; its log is {log}; `skerry down` ends it")
        return 0

    fail_as_told(work, output=output)


def _given(flags: Mapping[str, object]) -> list[str]:
    """The options as they can be given again."""
    given = {f"--{name.replace('_', '-')}": value for name, value in flags.items() if value is not None}
    return [name if value is True else f"{name}={value}" for name, value in given.items()]


def _change_service(flags: Mapping[str, object], output: Format, *, install: bool) -> None:
    def work() -> None:
        need_server()
        from skerry.cli import service
        from skerry.server import load_settings

        if not install:
            removed = service.uninstall()
            if output is Format.JSON:
                print_json({"removed": removed})
            else:
                note("the service is removed; sandboxes keep running" if removed else "the service is not installed")
            return
        load_settings(flags=flags)  # refuses what the service would fail with
        url = service.install(_given(flags))
        if output is Format.JSON:
            print_json({"unit": str(service.UNIT), "url": url})
        elif url is not None:
            print(
                f"Skerry serves at {url}, now and after each boot.\nTo sign in, make a link:\n  skerry user link admin"
            )
        else:
            print(f"The unit is {service.UNIT}. systemd does not run here; where it does, start the service:")
            print(f"  systemctl enable --now {service.NAME}")

    fail_as_told(work, output=output)


def _end_of(log: Path, begun: int) -> str:
    """What was written since the file had `begun` bytes, shortened to what is worth reading."""
    with open(log, "rb") as file:
        file.seek(max(begun, os.fstat(file.fileno()).st_size - 10_000))
        return file.read().decode(errors="replace")


def _directory() -> Path:
    """The running server. Ignores server.toml, so that a server can be ended while that file is wrong."""
    from skerry.server import Settings

    return Settings().directory


def _running() -> Instance | None:
    from skerry.server import running_server

    return running_server(_directory())


def status(output: options.Output = Format.TEXT) -> None:
    """Show whether a server runs on this machine, and its health.

    \b
    Example:
      skerry status
    """

    def work() -> int:
        found = _running()
        if found is None:
            if output is Format.JSON:
                print_json({"running": False})
            else:
                print("no server runs here; `skerry up` starts one")
            return 1
        told: dict[str, Any] = {"running": True, "pid": found.pid, "url": found.url, "started_at": found.started_at}
        told["health"] = _health(found) if found.url else "starting"
        if output is Format.JSON:
            print_json(told)
        else:
            print(f"{found.url or 'a server'}  {told['health']}  running for {ago(found.started_at)} (pid {found.pid})")
        return 0 if told["health"] == "ok" else 1

    fail_as_told(work, output=output)


def _health(found: Instance) -> str:
    from skerry.core import SkerryError
    from skerry.http import Client, Login, Request

    try:
        with Client(Login(url=found.url, ca_file=found.ca_file)) as client:
            return str(client.send(Request(method="GET", path="/health", timeout=5.0))["status"])
    except SkerryError as error:
        return f"does not answer: {error}"


def down(
    timeout: Annotated[
        Seconds, Option("--timeout", metavar="TIME", help="Kill the server after this long, such as 30s.")
    ] = Seconds(PATIENCE),
    output: options.Output = Format.TEXT,
) -> None:
    """Stop the server of this machine. Sandboxes keep running.

    \b
    Example:
      skerry down
    """

    def work() -> None:
        import time

        found = _running()
        if found is None:
            print_json({"pid": None, "killed": False}) if output is Format.JSON else note("no server runs here")
            return
        _send(found, signal.SIGTERM)
        until, killed = time.monotonic() + timeout, False
        while (now := _running()) is not None and now.pid == found.pid:  # not a server that was started since
            if time.monotonic() > until and not killed:
                _send(found, signal.SIGKILL)
                killed = True
            time.sleep(0.05)
        if output is Format.JSON:
            print_json({"pid": found.pid, "killed": killed})
        else:
            print(f"process {found.pid} {'was killed' if killed else 'has ended'}; sandboxes keep running")

    fail_as_told(work, output=output)


def _send(found: Instance, number: signal.Signals) -> None:
    try:
        os.kill(found.pid, number)
    except ProcessLookupError:
        pass  # the process has already ended


def backup(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE]", help="The file to write; by default a file beside the database.", show_default=False
        ),
    ] = None,
    output: options.Output = Format.TEXT,
) -> None:
    """Back up the server's database; print where.

    The server may run during the backup. The database holds users, keys, projects, events and the audit, but not
    sandboxes and their files. To restore a backup: stop the server, replace server/skerry.db in SKERRY_HOME with the
    file, remove skerry.db-wal and skerry.db-shm, and start the server.

    \b
    Example:
      skerry backup
      skerry backup /mnt/backups/skerry.db
    """

    def work() -> None:
        from pathlib import Path

        from skerry.core import FileMissing
        from skerry.server import back_up, load_settings

        settings, _ = load_settings()
        where = None if target is None else Path(target).absolute()
        if where is not None and not where.parent.is_dir():
            hint = "make it, or name a file in a directory that exists"
            raise FileMissing(f"there is no directory {where.parent}", hint=hint)
        keep = None if target is not None else settings.backups_kept
        made = back_up(settings.database, target=where, keep=keep)
        print_json({"backup": str(made)}) if output is Format.JSON else print(made)

    fail_as_told(work, output=output)


@config.command("show")
def config_show(output: options.Output = Format.TEXT) -> None:
    """Show every setting of the server, and where it comes from.

    \b
    Example:
      skerry config show
      SKERRY_SERVER_PORT=8080 skerry config show -o json
    """

    def work() -> None:
        from skerry.server import load_settings, shown_settings

        rows = shown_settings(*load_settings())
        if output is Format.JSON:
            print_json({name: {"value": _plain(value), "from": source} for name, value, source in rows})
        else:
            print_table(("SETTING", "VALUE", "FROM"), [(name, _text(value), source) for name, value, source in rows])

    fail_as_told(work, output=output)


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return list(value)
    return value if isinstance(value, bool | int | float | str) else str(value)


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "-"
    return "-" if value == "" else str(value)
