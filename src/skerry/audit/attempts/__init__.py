"""All attempts: data, in the order in which they are made; those that may end the sandbox come last."""

from __future__ import annotations

from skerry.audit.attempts.calls import CALLS
from skerry.audit.attempts.host import HOST, NEIGHBOUR
from skerry.audit.attempts.kernel import AGENT, KERNEL_FILES, RIGHTS
from skerry.audit.attempts.limits import LIMITS
from skerry.audit.attempts.network import NETWORK

ATTEMPTS = (*HOST, *NEIGHBOUR, *NETWORK, *CALLS, *KERNEL_FILES, *RIGHTS, *AGENT, *LIMITS)
