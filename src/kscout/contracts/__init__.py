"""Checks that any reconstructor or policy passes: run over the tables, and on users' own."""

from kscout.contracts.policies import check_policy
from kscout.contracts.reconstructors import check_reconstructor

__all__ = ["check_policy", "check_reconstructor"]
