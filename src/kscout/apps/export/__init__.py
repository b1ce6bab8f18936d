"""Exports: scan tables, sequences, reconstructed images, and networks for other runtimes."""
