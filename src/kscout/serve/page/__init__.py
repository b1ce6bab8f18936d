"""What a browser is shown: the page at `/`, and the interface's description at `/docs`."""
