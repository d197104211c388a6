"""The word of other systems for making a sandbox."""

from skerry.sdk.blocking._sync import Sandbox

compute = Sandbox.create
"""Another word for `Sandbox.create`."""
