"""Checks that any reconstructor or policy passes: run over the tables, and on users' own."""

from kscout.contracts.reconstructors import check_reconstructor

__all__ = ["check_reconstructor"]
