"""The client side of a WebSocket connection to a service."""
