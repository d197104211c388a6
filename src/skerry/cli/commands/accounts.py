"""The commands `login`, `logout`, `whoami`, `user`, `key` and `project`: accounts of a server."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from skerry.cli import options
from skerry.cli.options import Format
from skerry.cli.runtime import fail_as_told
from skerry.cli.terminal.output import ago, note, print_json, print_table, say

if TYPE_CHECKING:
    from skerry.http import Login

users = typer.Typer(
    name="user",
    help="""Manage the users of a server, as an administrator.

\b
Example:
  skerry user create mira
  skerry user link mira
""",
    rich_markup_mode=None,
    add_completion=False,
)
keys = typer.Typer(
    name="key",
    help="""Manage your API keys.

\b
Example:
  skerry key create --name ci --scope write --days 90
""",
    rich_markup_mode=None,
    add_completion=False,
)
projects = typer.Typer(
    name="project",
    help="""Manage projects and their members.

\b
Example:
  skerry project create demo
  skerry project share demo mira --role write
""",
    rich_markup_mode=None,
    add_completion=False,
)

UserName = Annotated[str, typer.Argument(metavar="USER", help="The user's name or id.", show_default=False)]
ProjectName = Annotated[str, typer.Argument(metavar="PROJECT", help="The project's name or id.", show_default=False)]


def _login() -> Login:
    """The login that is given or remembered; else, for root of this machine, the server that runs here."""
    from skerry.core import Unauthenticated
    from skerry.http import find_login

    try:
        return find_login()
    except Unauthenticated:
        from skerry.http import Login
        from skerry.server import Settings, admin_key, running_server

        directory = Settings().directory
        key = admin_key(directory)  # first: a user who may not read the key may not read the rest either
        found = None if key is None else running_server(directory)
        if found is None or not found.url:
            raise
        return Login(url=found.url, key=key, ca_file=found.ca_file)


def _ask(method: str, path: str, body: object = None, login: Login | None = None, **headers: str) -> Any:
    from skerry.http import Client, Request

    with Client(login or _login()) as client:
        return client.send(Request(method=method, path=path, json=body, headers=headers, timeout=60.0))


def _run(
    method: str, path: str, body: object = None, *, output: Format, show: Callable[[Any], None] | None = None
) -> None:
    """Ask once; print the answer as JSON, or as `show` does."""

    def work() -> None:
        answer = _ask(method, path, body)
        if output is Format.JSON:
            print_json(answer)
        elif show is not None:
            show(answer)

    fail_as_told(work, output=output)


def login(
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="[URL]", help="The server's address, such as http://127.0.0.1:7411.", show_default=False
        ),
    ] = None,
    user: Annotated[
        str | None, typer.Option("--user", "-u", metavar="NAME", help="Sign in with a name and a password.")
    ] = None,
    key: Annotated[bool, typer.Option("--key", help="Read an API key from standard input.")] = False,
    link: Annotated[
        str | None,
        typer.Option("--link", metavar="LINK", help="Sign in with a link that works once, and use it up."),
    ] = None,
    ca_file: Annotated[
        str | None,
        typer.Option("--ca-file", metavar="FILE", help="Trust this authority, of a server started with --tls."),
    ] = None,
    output: options.Output = Format.TEXT,
) -> None:
    """Log in to a server: remember it and a key.

    Later commands, and Python, use its sandboxes until `skerry logout`.
    With --link, Skerry uses a sign-in link, as `skerry up` and `skerry user link` print, and makes a new key. With
    --user, it asks for the password and makes a new key. With --key, it reads a key from standard input. It takes
    neither from the command line, which other users of the machine can see; a link is worthless once used. Without a
    URL, it logs in to the server that runs on this machine.

    \b
    Example:
      skerry login --link 'https://skerry.example:7411/sign-in#…'
      skerry login https://skerry.example:7411 --user mira
      pass show skerry-key | skerry login https://skerry.example:7411 --key
    """

    if link is not None and (url is not None or user is not None or key):
        raise typer.BadParameter("--link says where and as whom: give no URL, --user or --key with it")

    def work() -> None:
        import os

        from skerry.core import InvalidArgument
        from skerry.http import Login, check_url, save_login

        # Absolute, since later commands run in other directories.
        trusted = None if ca_file is None else os.path.abspath(ca_file)
        server, secret = (url, None) if link is None else _parts(link)
        found = _login() if server is None else Login(url=check_url(server))
        found = found if trusted is None else replace(found, ca_file=trusted)
        if secret is not None:
            text = _new_key(found, {"link": secret})
        elif key:
            text = _read_secret("Key").strip()
        elif user is not None:
            text = _new_key(found, {"name": user, "password": _read_secret("Password")})
        elif found.key is not None:
            text = found.key
        else:
            raise InvalidArgument("give --link LINK, --user NAME, or --key and a key on standard input")
        chosen = Login(url=found.url, key=text, ca_file=found.ca_file)
        who = _ask("GET", "/v1/session", login=chosen)
        where = save_login(chosen)
        if output is Format.JSON:
            print_json({"url": chosen.url, "user": who["user"], "file": str(where)})
        else:
            say(f"logged in to {chosen.url} as {who['user']} ({where})")

    fail_as_told(work, output=output)


def _parts(link: str) -> tuple[str, str]:
    """The server and the secret of a sign-in link. Raises InvalidArgument."""
    from skerry.core import InvalidArgument

    server, _, secret = link.strip().partition("/sign-in#")
    if not server or not secret:
        raise InvalidArgument("this is not a sign-in link", hint="copy all of it, with the part after the #, in quotes")
    return server, secret


def _new_key(found: Login, proof: dict[str, str]) -> str:
    """Make a key for this machine, in a session that ends at once."""
    import os

    import httpx2

    from skerry.http import client_settings, connection_lost, read_answer, transport_settings

    found = replace(found, key=None)  # the key that is already remembered may be another user's
    name = f"{os.environ.get('USER', 'somebody')} on {os.uname().nodename}"[:100]
    transport = httpx2.HTTPTransport(**transport_settings(found))
    try:
        with httpx2.Client(transport=transport, **client_settings(found)) as client:
            client.headers["x-skerry"] = "login"  # pages of other sites cannot send it
            read_answer(client.post("/v1/session", json=proof))
            made = read_answer(client.post("/v1/keys", json={"name": name, "scopes": ["read", "write", "admin"]}))
            read_answer(client.delete("/v1/session"))
    except httpx2.TransportError as error:
        raise connection_lost(error, found) from error
    return str(made["key"])


def _read_secret(what: str) -> str:
    """Ask without an echo, or read the first line of standard input; never the command line, which others can see."""
    if sys.stdin.isatty():
        return str(typer.prompt(what, hide_input=True, err=True))
    return sys.stdin.readline().rstrip("\r\n")


def logout(output: options.Output = Format.TEXT) -> None:
    """Forget the server that `login` remembers.

    Commands use the sandboxes of this machine again. The key stays valid: `skerry key revoke` ends it.

    \b
    Example:
      skerry logout
    """

    def work() -> None:
        from skerry.http import forget_login

        forgotten = forget_login()
        if output is Format.JSON:
            print_json({"forgotten": forgotten})
        else:
            note("logged out" if forgotten else "you were not logged in")

    fail_as_told(work, output=output)


def whoami(output: options.Output = Format.TEXT) -> None:
    """Show which server commands talk to, and as whom.

    \b
    Example:
      skerry whoami
    """

    def work() -> None:
        found = _login()
        who = _ask("GET", "/v1/session", login=found)
        if output is Format.JSON:
            print_json({"url": found.url, **who})
            return
        say(f"{who['user']}{' (administrator)' if who['admin'] else ''} at {found.url}, id {who['user_id']}")
        say(f"{who['credential']}: {', '.join(who['scopes'])}")
        for project in who["projects"]:
            say(f"{project['id']}  {project['name']}  {project['role'] or 'administrator'}")

    fail_as_told(work, output=output)


@users.command("ls")
def user_list(output: options.Output = Format.TEXT) -> None:
    """List the users.

    \b
    Example:
      skerry user ls
    """

    def show(answer: Any) -> None:
        rows = [
            (
                user["name"],
                "administrator" if user["admin"] else "user",
                "disabled" if user["disabled"] else "active",
                ago(user["created_at"]),
            )
            for user in answer["items"]
        ]
        print_table(("NAME", "KIND", "STATE", "AGE"), rows)

    _run("GET", "/v1/users", output=output, show=show)


@users.command("create")
def user_create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A unique name for the user.", show_default=False)],
    admin: Annotated[
        bool, typer.Option("--admin", help="Make an administrator, who sees and may do everything.")
    ] = False,
    output: options.Output = Format.TEXT,
) -> None:
    """Make a user; print a link that signs in once.

    With the link the user can set a password or make keys.

    \b
    Example:
      skerry user create mira
    """

    def work() -> None:
        made = _ask("POST", "/v1/users", {"name": name, "admin": admin})
        link = _ask("POST", f"/v1/users/{made['id']}/link", {"lifetime": 86400})
        print_json({**made, "link": link["url"]}) if output is Format.JSON else say(link["url"])

    fail_as_told(work, output=output)


@users.command("link")
def user_link(name: UserName, output: options.Output = Format.TEXT) -> None:
    """Print a link that signs a user in once, within a day.

    \b
    Example:
      skerry user link mira
    """
    path = f"/v1/users/{quote(name, safe='')}/link"
    _run("POST", path, {"lifetime": 86400}, output=output, show=lambda answer: say(answer["url"]))


@users.command("password")
def user_password(name: UserName, output: options.Output = Format.TEXT) -> None:
    """Set a user's password, read from standard input.

    All sessions of the user end.

    \b
    Example:
      skerry user password mira < password.txt
    """
    text = _read_secret("Password")
    _run("PATCH", f"/v1/users/{quote(name, safe='')}", {"password": text}, output=output)


@users.command("disable")
def user_disable(
    name: UserName,
    undo: Annotated[bool, typer.Option("--undo", help="Let the user in again.")] = False,
    output: options.Output = Format.TEXT,
) -> None:
    """Keep a user out.

    The user's sessions end and their keys stop working. What belongs to the user stays.

    \b
    Example:
      skerry user disable mira
    """
    _run("PATCH", f"/v1/users/{quote(name, safe='')}", {"disabled": not undo}, output=output)


@users.command("rm")
def user_remove(name: UserName, output: options.Output = Format.TEXT) -> None:
    """Remove a user with their keys and memberships.

    The sandboxes of the personal project stay, and administrators take care of them.

    \b
    Example:
      skerry user rm mira
    """
    _run("DELETE", f"/v1/users/{quote(name, safe='')}", output=output)


@keys.command("ls")
def key_list(output: options.Output = Format.TEXT) -> None:
    """List your keys.

    \b
    Example:
      skerry key ls
    """

    def show(answer: Any) -> None:
        rows = [
            (
                key["id"],
                key["name"],
                ",".join(key["scopes"]),
                key["project"] or "-",
                "never" if key["last_used_at"] is None else ago(key["last_used_at"]),
            )
            for key in answer["items"]
        ]
        print_table(("ID", "NAME", "SCOPES", "PROJECT", "USED"), rows)

    _run("GET", "/v1/keys", output=output, show=show)


@keys.command("create")
def key_create(
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Say what the key is for.")] = "key",
    scope: Annotated[
        list[str] | None, typer.Option("--scope", metavar="read|write|admin", help="Allow this. Repeatable.")
    ] = None,
    project: Annotated[
        str | None, typer.Option("--project", metavar="PROJECT", help="Limit the key to this project.")
    ] = None,
    days: Annotated[float | None, typer.Option("--days", metavar="N", help="End the key after this many days.")] = None,
    output: options.Output = Format.TEXT,
) -> None:
    """Make an API key and print it.

    Skerry cannot show the key again.

    \b
    Example:
      skerry key create --name ci --scope write --project demo --days 90
    """
    body = {
        "name": name,
        "scopes": scope or ["read", "write"],
        "project": project,
        "lifetime": None if days is None else days * 86400,
    }
    _run("POST", "/v1/keys", body, output=output, show=lambda answer: say(answer["key"]))


@keys.command("revoke")
def key_revoke(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key's id, as `key ls` shows it.", show_default=False)],
    output: options.Output = Format.TEXT,
) -> None:
    """Revoke a key, at once.

    \b
    Example:
      skerry key revoke 5f0c2a9be1d4
    """
    _run("DELETE", f"/v1/keys/{quote(key, safe='')}", output=output)


@projects.command("ls")
def project_list(output: options.Output = Format.TEXT) -> None:
    """List the projects you see.

    \b
    Example:
      skerry project ls
    """

    def show(answer: Any) -> None:
        rows = [
            (item["id"], item["name"], item["role"] or "-", "personal" if item["personal"] else "shared")
            for item in answer["items"]
        ]
        print_table(("ID", "NAME", "ROLE", "KIND"), rows)

    _run("GET", "/v1/projects", output=output, show=show)


@projects.command("create")
def project_create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The project's name.", show_default=False)],
    output: options.Output = Format.TEXT,
) -> None:
    """Make a project that you own, and print its id.

    \b
    Example:
      skerry project create demo
    """
    _run("POST", "/v1/projects", {"name": name}, output=output, show=lambda answer: say(answer["id"]))


@projects.command("rm")
def project_remove(project: ProjectName, output: options.Output = Format.TEXT) -> None:
    """Remove a project that is empty.

    \b
    Example:
      skerry project rm demo
    """
    _run("DELETE", f"/v1/projects/{quote(project, safe='')}", output=output)


@projects.command("members")
def project_members(project: ProjectName, output: options.Output = Format.TEXT) -> None:
    """List the members of a project.

    \b
    Example:
      skerry project members demo
    """

    def show(answer: Any) -> None:
        print_table(("USER", "ROLE"), [(item["user"], item["role"]) for item in answer["items"]])

    _run("GET", f"/v1/projects/{quote(project, safe='')}/members", output=output, show=show)


@projects.command("share")
def project_share(
    project: ProjectName,
    user: UserName,
    role: Annotated[
        str, typer.Option("--role", metavar="read|write|owner", help="Say what the member may do.")
    ] = "read",
    output: options.Output = Format.TEXT,
) -> None:
    """Make a user a member, or change their role.

    Administrators can give the name of any user. Others give the id that `skerry whoami` shows that user, or the name
    once both share a project. A sandbox's name still means one in your own project: SKERRY_PROJECT chooses another.

    \b
    Example:
      skerry project share demo mira --role write
      skerry project share demo us-5f0c2a9be1d40718
    """
    _run("PUT", _member(project, user), {"role": role}, output=output)


@projects.command("unshare")
def project_unshare(project: ProjectName, user: UserName, output: options.Output = Format.TEXT) -> None:
    """Remove a user from a project.

    \b
    Example:
      skerry project unshare demo mira
    """
    _run("DELETE", _member(project, user), output=output)


def _member(project: str, user: str) -> str:
    return f"/v1/projects/{quote(project, safe='')}/members/{quote(user, safe='')}"
