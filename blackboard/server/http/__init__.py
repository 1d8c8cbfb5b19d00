"""The ways into the service: WebSocket, JSON-RPC by POST, health, metrics."""
