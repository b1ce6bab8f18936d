"""Sessions over HTTP and WebSocket: `kscout serve`."""
