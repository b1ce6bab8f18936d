"""kscout."""
