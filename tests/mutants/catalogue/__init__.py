"""Deliberate breakages, each with the test that must catch it. `make mutants` tries them one at a time."""

from __future__ import annotations

from tests.mutants.catalogue.agent import AGENT
from tests.mutants.catalogue.archive import ARCHIVE
from tests.mutants.catalogue.local import LOCAL
from tests.mutants.catalogue.sdk import SDK
from tests.mutants.catalogue.server import SERVER
from tests.mutants.catalogue.states import STATES
from tests.mutants.catalogue.templates import TEMPLATES
from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS", "Mutant"]

MUTANTS = [*AGENT, *SDK, *LOCAL, *ARCHIVE, *TEMPLATES, *STATES, *SERVER]
