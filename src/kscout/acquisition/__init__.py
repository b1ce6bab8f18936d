"""Acquisitions as a loop over batches: start, choose, measure, reconstruct, score."""
