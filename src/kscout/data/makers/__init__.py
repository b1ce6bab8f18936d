"""Images that need no license, drawn volume by volume; `kscout.names.SOURCES` is the table."""
