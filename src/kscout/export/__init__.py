"""Files to take away: scan tables, and networks for other runtimes."""
