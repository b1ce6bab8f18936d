"""The scanner as pure functions on tensors: no files, weights or settings."""
