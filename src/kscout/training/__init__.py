"""Training of reconstructors and policies: repeatable, resumable, on one process or several."""
