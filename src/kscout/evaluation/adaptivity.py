"""Mutual information between images and columns; the public name of `entropies`."""

from kscout.evaluation.analyses.entropy import Entropies, entropies

__all__ = ["Entropies", "entropies"]
