"""The engine over Redis or Valkey: one Lua script per batch of commits."""
