"""Templates: what a sandbox is made from, as data, and the steps that build it."""

from skerry.templates.catalogue import builtin, resolve, versions
from skerry.templates.model import Command, File, Packages, Scripts, Template
from skerry.templates.parse import load, parse_text
from skerry.templates.plan import Step, digest, environment, steps

__all__ = [
    "Command",
    "File",
    "Packages",
    "Scripts",
    "Step",
    "Template",
    "builtin",
    "digest",
    "environment",
    "load",
    "parse_text",
    "resolve",
    "steps",
    "versions",
]
