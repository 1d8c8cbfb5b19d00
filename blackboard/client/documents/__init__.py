"""Documents that several people and agents edit concurrently. They need pycrdt, an extra of the
client: without it, importing this package says so."""

from blackboard._lazy import need

need("pycrdt", "documents need pycrdt", "agent-blackboard-client[documents]")
