"""The page at `/` and the description of the interface at `/docs`."""
