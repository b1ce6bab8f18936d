"""Names of version 0.2 that are called otherwise now."""

CLASSES: dict[str, str] = {}
"""Classes of components, by the name of today: what version 0.2 called them. Fingerprints count
the class, and those in files of 0.2 must not change."""
