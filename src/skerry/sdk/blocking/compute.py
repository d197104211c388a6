"""`compute.create`, the name that other systems use for making a sandbox."""

from skerry.sdk.blocking._sync import Sandbox

compute = Sandbox.create
"""Another word for `Sandbox.create`."""
