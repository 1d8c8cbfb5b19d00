"""The edges: settings, the server on one port, the client. What a socket has to do with is here."""
