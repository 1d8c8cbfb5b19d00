"""The doors of the service: WebSocket, JSON-RPC by POST, health, metrics."""
