"""Files that evaluations and analyses write, and their readers; nothing here needs torch."""
