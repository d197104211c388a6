"""The conformance suite: classes of pytest cases that show whether a provider keeps the contract.

Derive a class named `Test…` from each and override the fixture `provider`; `skerry conformance` runs all of them.
Needs pytest, which the extra `testing` brings.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("skerry.testing.cases")

from skerry.testing.cases.base import Conformance, Fresh  # noqa: E402
from skerry.testing.cases.clients import ClientsConformance  # noqa: E402
from skerry.testing.cases.commands.environment import EnvConformance  # noqa: E402
from skerry.testing.cases.commands.exec import ExecConformance  # noqa: E402
from skerry.testing.cases.commands.output import OutputConformance  # noqa: E402
from skerry.testing.cases.commands.ports import PortsConformance  # noqa: E402
from skerry.testing.cases.commands.processes import ProcessesConformance  # noqa: E402
from skerry.testing.cases.commands.terminals import TerminalsConformance  # noqa: E402
from skerry.testing.cases.commands.timeouts import TimeoutsConformance  # noqa: E402
from skerry.testing.cases.files.files import FilesConformance  # noqa: E402
from skerry.testing.cases.files.git_search import GitConformance, SearchConformance  # noqa: E402
from skerry.testing.cases.files.transfers import TransfersConformance  # noqa: E402
from skerry.testing.cases.files.watch import WatchConformance  # noqa: E402
from skerry.testing.cases.limits_network import (  # noqa: E402
    DeadlinesConformance,
    LeasesConformance,
    LimitsConformance,
    NetworkConformance,
    ResizableConformance,
)
from skerry.testing.cases.state.export import ArchivableConformance, PortableConformance  # noqa: E402
from skerry.testing.cases.state.lifecycle import LifecycleConformance, ListingConformance  # noqa: E402
from skerry.testing.cases.state.snapshots import CopiesConformance, SnapshotsConformance  # noqa: E402
from skerry.testing.cases.state.stopped_paused import PausingConformance, StoppingConformance  # noqa: E402
from skerry.testing.cases.state.templates import TemplatesConformance  # noqa: E402
from skerry.testing.cases.state.volumes import VolumesConformance  # noqa: E402

SUITES: tuple[type[Conformance], ...] = (
    LifecycleConformance,
    ListingConformance,
    ExecConformance,
    OutputConformance,
    TimeoutsConformance,
    ProcessesConformance,
    TerminalsConformance,
    FilesConformance,
    TransfersConformance,
    GitConformance,
    SearchConformance,
    WatchConformance,
    PortsConformance,
    EnvConformance,
    ClientsConformance,
    LimitsConformance,
    NetworkConformance,
    DeadlinesConformance,
    LeasesConformance,
    ResizableConformance,
    StoppingConformance,
    PausingConformance,
    SnapshotsConformance,
    CopiesConformance,
    TemplatesConformance,
    VolumesConformance,
    PortableConformance,
    ArchivableConformance,
)
"""Every class, in the order of the tables."""


def cases(suite: type[Conformance]) -> dict[str, str]:
    """The cases of a class: name and first line of what it shows. Variants of one case count once."""
    return {
        name: (member.__doc__ or "").partition("\n")[0]
        for name, member in vars(suite).items()
        if name.startswith("test_")
    }


__all__ = [
    "SUITES",
    "ArchivableConformance",
    "ClientsConformance",
    "Conformance",
    "CopiesConformance",
    "DeadlinesConformance",
    "EnvConformance",
    "ExecConformance",
    "FilesConformance",
    "Fresh",
    "GitConformance",
    "LeasesConformance",
    "LifecycleConformance",
    "LimitsConformance",
    "ListingConformance",
    "NetworkConformance",
    "OutputConformance",
    "PausingConformance",
    "PortableConformance",
    "PortsConformance",
    "ProcessesConformance",
    "ResizableConformance",
    "SearchConformance",
    "SnapshotsConformance",
    "StoppingConformance",
    "TemplatesConformance",
    "TerminalsConformance",
    "TimeoutsConformance",
    "TransfersConformance",
    "VolumesConformance",
    "WatchConformance",
    "cases",
]
