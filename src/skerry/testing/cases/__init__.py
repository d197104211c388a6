"""The cases, a module for each part of the contract."""

import pytest

pytest.register_assert_rewrite(
    *(f"{__name__}.{part}" for part in ("base", "clients", "commands", "files", "limits_network", "state"))
)
