"""The loggers of sandboxes and of templates. Records carry no command lines, no values and no contents."""

from __future__ import annotations

import logging

log = logging.getLogger("skerry.sandbox")
template_log = logging.getLogger("skerry.template")
