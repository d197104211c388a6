"""The logger of everything a sandbox does. Records carry no command lines, no values and no contents."""

from __future__ import annotations

import logging

log = logging.getLogger("skerry.sandbox")
