"""An evaluation in short: `summary.json`, what computes it, its tables, the paper's numbers."""
