"""Summaries of evaluations: `summary.json`, its computation and tables, the paper's numbers."""
