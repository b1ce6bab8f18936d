"""Algorithms that train a policy: one file each, found by name in `kscout.names.ESTIMATORS`."""
