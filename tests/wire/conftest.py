"""Property tests take the time they take: a machine under load fails none of them."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("steady", deadline=None)
settings.load_profile("steady")
