"""The classes of the conformance suite, in the order of the tables."""

from __future__ import annotations

from skerry.testing.cases.base import Conformance
from skerry.testing.cases.clients import ClientsConformance
from skerry.testing.cases.commands.environment import EnvConformance
from skerry.testing.cases.commands.exec import ExecConformance
from skerry.testing.cases.commands.output import OutputConformance
from skerry.testing.cases.commands.ports import PortsConformance
from skerry.testing.cases.commands.processes import ProcessesConformance
from skerry.testing.cases.commands.terminals import TerminalsConformance
from skerry.testing.cases.commands.timeouts import TimeoutsConformance
from skerry.testing.cases.files.files import FilesConformance
from skerry.testing.cases.files.git_search import GitConformance, SearchConformance
from skerry.testing.cases.files.transfers import TransfersConformance
from skerry.testing.cases.files.watch import WatchConformance
from skerry.testing.cases.limits_network import (
    DeadlinesConformance,
    LeasesConformance,
    LimitsConformance,
    NetworkConformance,
    ResizableConformance,
)
from skerry.testing.cases.state.export import ArchivableConformance, PortableConformance
from skerry.testing.cases.state.lifecycle import LifecycleConformance, ListingConformance
from skerry.testing.cases.state.snapshots import CopiesConformance, SnapshotsConformance
from skerry.testing.cases.state.stopped_paused import PausingConformance, StoppingConformance
from skerry.testing.cases.state.templates import TemplatesConformance
from skerry.testing.cases.state.volumes import VolumesConformance

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


def cases_of(suite: type[Conformance]) -> dict[str, str]:
    """The cases of a class: name and first line of what it shows. Variants of one case count once."""
    return {
        name: (member.__doc__ or "").partition("\n")[0]
        for name, member in vars(suite).items()
        if name.startswith("test_")
    }
