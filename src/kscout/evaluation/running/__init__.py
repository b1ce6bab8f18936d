"""Policies on a whole split: from names and paths to the acquisitions of every slice."""
