-- Reads all leases of a board (at most LEASES_MAX) as they are at one revision. Writes nothing.
--   KEYS  see prelude.lua
-- Reply: {} when the board must be opened first; else {revision, epoch, time_ms, leases}, the
--        leases flat: key, msgpack list (core/lease.py). The field "" only keeps the hash alive.
local revision, _, _, epoch = opened()
if not revision then return {} end
return {revision, epoch, now_ms(), call('HGETALL', LEASES)}
