"""`python -m kscout` is the command line without an installation."""

from kscout.cli import main

main()
