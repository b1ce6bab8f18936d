"""Applications on top of the library: command line, service, campaigns, reports and others."""
