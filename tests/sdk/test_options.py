"""Options are checked before anything happens, each with its own error."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import PurePosixPath

import pytest

from skerry import (
    AsyncSandbox,
    AsyncVolumes,
    InvalidArgument,
    QuotaExceeded,
    Resources,
    Sandbox,
    State,
    Unsupported,
    VolumeInfo,
    VolumeMount,
)
from skerry.sdk import CreateOptions
from skerry.sdk.options import check_volumes
from skerry.server.web.models.sandboxes import CreateSandbox
from skerry.wire import FileInfoMessage, Stat, Type
from tests.sdk.fake_agent import Connection, FakeProvider, reply

NOT_YET = "image snapshot language runtime ports region target options".split()


@pytest.mark.parametrize("option", NOT_YET)
async def test_an_option_without_a_feature_is_unsupported(option: str, fake: FakeProvider) -> None:
    with pytest.raises(Unsupported, match=option) as caught:
        await AsyncSandbox.create(fake, **{option: "x"})
    assert caught.value.option == option
    assert not fake.sandboxes


@pytest.mark.parametrize("option", ["auto_stop", "idle_timeout", "auto_archive", "auto_delete"])
async def test_an_end_by_inactivity_needs_a_provider_that_can_stop(option: str, fake: FakeProvider) -> None:
    with pytest.raises(Unsupported) as caught:
        await AsyncSandbox.create(fake, **{option: 60})
    assert caught.value.option in (option, "auto_stop")
    assert not fake.sandboxes


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"template": "python"}, "template"),
        ({"network": "example.com"}, "network"),
        ({"volumes": {"/data": "x"}}, "volumes"),
        ({"resources": {"gpu": "T4"}}, "resources.gpu"),
    ],
)
async def test_a_value_without_a_feature_is_unsupported(
    options: dict[str, object], option: str, fake: FakeProvider
) -> None:
    with pytest.raises(Unsupported) as caught:
        await AsyncSandbox.create(fake, **options)
    assert caught.value.option == option
    assert not fake.sandboxes


@pytest.mark.parametrize(
    "options",
    [
        {"name": ""},
        {"name": "Upper"},
        {"name": "-x"},
        {"name": "x" * 64},
        {"name": "a b"},
        {"name": "sb-abcdefghij"},
        {"name": 5},
        {"env": {"": "x"}},
        {"env": {"A=B": "x"}},
        {"env": {"A\0": "x"}},
        {"env": {"A": "x\0"}},
        {"env": {"A": 5}},
        {"env": ["A=b"]},
        {"env": {"A": "\ud800"}},
        {"metadata": {"a": 1}},
        {"metadata": {1: "a"}},
        {"metadata": "text"},
        {"labels": {"": "a"}},
        {"labels": {str(i): "a" for i in range(300)}},
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": float("nan")},
        {"timeout": "10x"},
        {"timeout": True},
        {"purpose": ""},
        {"user": ""},
        {"workdir": "relative"},
        {"workdir": ""},
        {"workdir": "/a\0b"},
        {"resources": {"memory": "lots"}},
        {"resources": {"memory": 0}},
        {"resources": {"memory": 1.5}},
        {"resources": {"cpu": 0}},
        {"resources": {"cpu": "2"}},
        {"resources": {"pids": "5"}},
        {"resources": 5},
        {"resources": {"ram": 5}},
        {"idempotency_key": ""},
        {"auto_stop": 0},
        {"auto_stop": "60x"},
        {"auto_stop": True},
        {"auto_delete": float("inf")},
        {"auto_stop": 60, "idle_timeout": 60},
        {"auto_stop": 60, "keep_alive": True},
        {"keep_alive": "yes"},
        {"secrets": {"A": 5}},
        {"secrets": "A=b"},
        {"secrets": {"A": "x"}, "env": {"A": "y"}},
    ],
    ids=repr,
)
async def test_an_option_that_makes_no_sense_is_refused(options: dict[str, object], fake: FakeProvider) -> None:
    with pytest.raises(InvalidArgument):
        await AsyncSandbox.create(fake, **options)
    assert not fake.sandboxes


async def test_a_misspelt_resource_is_refused_with_the_nearest(fake: FakeProvider) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await AsyncSandbox.create(fake, resources={"memori": "1GB"})
    assert "'memory'" in caught.value.hint


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": 86401},
        {"resources": Resources(cpu=5)},
        {"resources": {"memory": "9GB"}},
        {"resources": {"pids": 20000}},
    ],
)
async def test_more_than_the_maximum_is_a_quota(options: dict[str, object], fake: FakeProvider) -> None:
    with pytest.raises(QuotaExceeded):
        await AsyncSandbox.create(fake, **options)
    assert not fake.sandboxes


async def test_what_was_asked_for_arrives(fake: FakeProvider) -> None:
    async def script(connection: Connection) -> None:
        await connection.greet()
        frame = await connection.frame(Type.STAT)
        assert Stat.decode(frame.payload).path == b"/srv"
        info = FileInfoMessage(
            path=b"/srv", type_name="dir", size=0, mode=0o755, uid=0, gid=0, mtime_ns=0, inode=1, etag="e"
        )
        await connection.raw(reply(frame.stream, info))
        await connection.frame()

    fake.script = script
    sandbox = await AsyncSandbox.create(
        fake,
        name="my-box.1",
        env={"A": "b"},
        metadata={"m": "1"},
        labels={"l": "2"},
        timeout=60,
        resources={"cpu": 1.5, "memory": "512MB", "pids": 100},
        network="open",
        user="root",
        workdir=PurePosixPath("/srv"),
    )
    assert sandbox.config.resources == Resources(cpu=1.5, memory=512_000_000, pids=100)
    assert sandbox.config.env == {"A": "b"}
    assert (sandbox.config.user, sandbox.config.workdir, sandbox.config.timeout) == ("root", "/srv", 60)
    info = await sandbox.info()
    assert (info.name, info.network, info.metadata, info.labels) == ("my-box.1", "open", {"m": "1"}, {"l": "2"})
    other = await AsyncSandbox.find("my-box.1", provider=fake)
    assert other.id == sandbox.id
    assert other.config.resources == sandbox.config.resources


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("", {}),
        ([], {}),
        ([""], {}),
        (["a", 5], {}),
        (b"bytes", {}),
        (5, {}),
        ("a\0b", {}),
        (["a", "b\0"], {}),
        ("x", {"cwd": ""}),
        ("x", {"cwd": "a\0"}),
        ("x", {"cwd": 5}),
        ("x", {"env": {"A=": "b"}}),
        ("x", {"timeout": 0}),
        ("x", {"timeout": float("inf")}),
        ("x", {"user": ""}),
        ("x", {"user": "bob", "sudo": True}),
        ("x", {"output_limit": -1}),
        ("x", {"output_limit": 1.5}),
    ],
    ids=repr,
)
async def test_a_command_that_makes_no_sense_is_refused_before_it_is_sent(
    command: object, options: Mapping[str, object], fake: FakeProvider, sandbox: AsyncSandbox
) -> None:
    with pytest.raises(InvalidArgument):
        await sandbox.exec(command, **options)
    with pytest.raises(InvalidArgument):
        sandbox.exec_stream(command, **options)
    assert fake.dials == 0


@pytest.mark.parametrize("path", ["", "a\0b", 5, "\ud800"])
async def test_a_path_that_is_none_is_refused_before_it_is_sent(
    path: object, fake: FakeProvider, sandbox: AsyncSandbox
) -> None:
    files = sandbox.files
    for call in (files.read, files.stat, files.list, files.mkdir, files.remove, files.exists):
        with pytest.raises(InvalidArgument):
            await call(path)
    with pytest.raises(InvalidArgument):
        await files.write(path, b"")
    assert fake.dials == 0


@pytest.mark.parametrize(
    "volumes",
    [
        "data",
        7,
        ["data"],
        {"/data": 7},
        {"/data": VolumeMount(name="data", path="/other")},
        {"data": "data"},
        {"/data": "../x"},
        {"/data": "Data"},
        {"/data": "a", "/data/": "b"},
        {"/dev/x": "data"},
        [VolumeMount(name="data", path="/data", subpath="/etc")],
        [VolumeMount(name="data", path="/data", read_only=1)],  # type: ignore[arg-type]
        {f"/m{number}": "data" for number in range(33)},
    ],
)
async def test_volumes_that_make_no_sense_are_refused_before_anything_happens(
    volumes: object, fake: FakeProvider
) -> None:
    with pytest.raises(InvalidArgument):
        await AsyncSandbox.create(fake, volumes=volumes)  # type: ignore[arg-type]
    assert not fake.sandboxes


def test_every_form_of_volumes_means_the_same() -> None:
    mount = VolumeMount(name="data", path="/data")
    info = VolumeInfo(name="data", created_at=0, size=None, used=None, temporary=False, sandboxes=())
    for form in ({"/data": "data"}, {"//data/.": "data"}, {"/data": info}, {"/data": mount}, [mount], (mount,)):
        assert check_volumes(form) == (mount,)
    assert check_volumes(None) == check_volumes({}) == check_volumes([]) == ()
    nested = check_volumes({"/data/sub": "b", "/data": "a", "/data-x": "c"})
    assert [each.path for each in nested] == ["/data", "/data/sub", "/data-x"]


async def test_a_provider_without_volumes_says_so(fake: FakeProvider) -> None:
    with pytest.raises(Unsupported) as caught:
        AsyncVolumes(fake)
    assert caught.value.option == "volumes"


async def test_set_limits_checks_first(fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    with pytest.raises(InvalidArgument):
        await sandbox.set_limits()
    with pytest.raises(InvalidArgument):
        await sandbox.set_limits(cpu=1, cpu_percent=100)
    with pytest.raises(QuotaExceeded):
        await sandbox.scale(memory="100GB")
    with pytest.raises(QuotaExceeded):
        await sandbox.set_limits(disk="1TB")
    with pytest.raises(QuotaExceeded):
        await sandbox.set_timeout(10**9)
    assert (await sandbox.set_limits(cpu_percent=150)).id == sandbox.id


async def test_list_filters_and_pages(fake: FakeProvider) -> None:
    made = [(await AsyncSandbox.create(fake, metadata={"n": str(i % 2)}, labels={"all": "yes"})).id for i in range(7)]
    page = await AsyncSandbox.list(provider=fake, limit=3)
    seen = [info.id for info in page]
    while page.cursor is not None:
        page = await AsyncSandbox.list(provider=fake, limit=3, cursor=page.cursor)
        seen += [info.id for info in page]
    assert seen == made
    odd = await AsyncSandbox.list(provider=fake, metadata={"n": "1"}, labels={"all": "yes"}, state="running")
    assert [info.id for info in odd] == made[1::2]
    assert len(await AsyncSandbox.list(provider=fake, state=State.FAILED)) == 0
    for wrong in ({"state": "asleep"}, {"limit": 0}, {"cursor": "x"}):
        with pytest.raises(InvalidArgument):
            await AsyncSandbox.list(provider=fake, **wrong)


async def test_an_unknown_provider_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="nowhere"):
        await AsyncSandbox.create("nowhere")


def test_the_blocking_create_has_the_same_options() -> None:
    ours = inspect.signature(Sandbox.create)
    theirs = inspect.signature(AsyncSandbox.create)
    assert list(ours.parameters) == list(theirs.parameters)
    assert {name: p.default for name, p in ours.parameters.items()} == {
        name: p.default for name, p in theirs.parameters.items()
    }


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"resources": {"cpu": -1}}, InvalidArgument, "cpu must be a number of cores above 0, not -1"),
        ({"resources": {"cpu": True}}, InvalidArgument, "cpu must be a number of cores above 0, not True"),
        ({"resources": {"pids": -5}}, InvalidArgument, "pids must be a whole number of 1 or more, not -5"),
        ({"resources": {"pids": 1}}, InvalidArgument, "pids must be 8 or more, not 1: a sandbox itself needs some"),
        (
            {"resources": {"memory": "1KB"}},
            InvalidArgument,
            "1 kB of memory is too little: a sandbox needs 4 MB or more",
        ),
        ({"resources": {"memory": "16GB"}}, QuotaExceeded, "16 GB of memory is above the maximum of 8 GB"),
        ({"resources": {"memory": 8 * 10**9 + 1}}, QuotaExceeded, "8,000,000,001 B of memory is above the maximum of"),
        ({"resources": {"disk": "1TB"}}, QuotaExceeded, "1 TB of disk is above the maximum of 50 GB"),
        ({"resources": {"cpu": 64}}, QuotaExceeded, "64 cores of CPU are above the maximum of 4"),
        ({"resources": {"pids": 100_000}}, QuotaExceeded, "100,000 processes are above the maximum of 16,384"),
        ({"on_event": 1}, InvalidArgument, "on_event must be a function, not int"),
    ],
)
async def test_a_bad_value_is_refused_in_its_own_words(
    options: dict[str, object], kind: type[Exception], words: str, fake: FakeProvider
) -> None:
    with pytest.raises(kind) as caught:
        await AsyncSandbox.create(fake, **options)
    assert words in str(caught.value)
    assert not fake.sandboxes


async def test_a_listener_that_cannot_be_called_is_refused(sandbox: AsyncSandbox) -> None:
    with pytest.raises(InvalidArgument, match="must be a function, not str"):
        sandbox.on("*", "print")  # type: ignore[arg-type]


def test_the_least_that_is_allowed_works() -> None:
    with Sandbox.create(resources={"memory": "4MB", "pids": 8}) as sandbox:
        assert sandbox.exec("ls / | cat").ok


def test_a_multiple_of_the_granted_limits_can_be_asked_for() -> None:
    with Sandbox.create() as sandbox:
        granted = sandbox.config.resources.memory
        assert granted is not None
        sandbox.restart(resources={"memory": granted * 2})
        assert (sandbox.config.resources.memory, sandbox.info().resources.memory) == (granted * 2, granted * 2)
        sandbox.set_limits(memory=granted)
        assert sandbox.config.resources.memory == granted


def test_an_option_that_does_not_exist_is_refused_with_the_nearest() -> None:
    with pytest.raises(TypeError, match="'nme'; did you mean 'name'"):
        Sandbox.create(nme="x")  # type: ignore[call-arg]


def test_every_option_of_create_is_one_of_the_server_or_cannot_be() -> None:
    """What the body of a request leaves out is a Python object, or has another place in a request."""
    left_out = set(CreateOptions.__optional_keys__) - set(CreateSandbox.model_fields)
    assert left_out == {
        *("import_state", "key", "idempotency_key"),
        *("auto_start", "on_event", "on_log", "on_progress", "options"),
    }
    assert not set(CreateSandbox.model_fields) - set(CreateOptions.__optional_keys__)
    assert all(field.description for field in CreateSandbox.model_fields.values())


@pytest.mark.parametrize("wrong", ["foreground", "input", "size", "outputlimit"])
def test_what_a_command_is_made_of_inside_is_no_option(wrong: str) -> None:
    with Sandbox.create() as sandbox:
        calls = (sandbox.exec, sandbox.exec_stream, sandbox.code_run, sandbox.processes.spawn, sandbox.terminals.create)
        for call in calls:
            with pytest.raises(TypeError, match=wrong):
                call("echo x", **{wrong: 1})  # type: ignore[operator]
        with pytest.raises(TypeError, match="timeout"):
            sandbox.terminals.create("sleep 1", timeout=1)  # type: ignore[call-arg]
        assert sandbox.processes.list() == []
