"""Checks for any reconstructor or policy, of kscout (in its tests) or of users."""

from kscout.contracts.policies import check_policy
from kscout.contracts.reconstructors import check_reconstructor

__all__ = ["check_policy", "check_reconstructor"]
