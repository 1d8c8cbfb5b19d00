-- Removes a board for good. A record of its last revision stays: services that still have it open
-- learn from it that it was removed (open.lua), and a later board of that name begins above it.
--   KEYS  see prelude.lua
--   ARGV  1 a revision that the board had at least, 2 the epoch that it is in; left out = any
-- Reply: "ok", also when it was removed before, or while it was being made; "stale", and nothing
-- happens, when a board is there in another epoch.
local m = call('HMGET', META, 'rev', 'e', 'gone', 'number', 'epoch')
if ARGV[2] and m[5] and m[5] ~= ARGV[2] then return 'stale' end
local number = m[2] and cmsgpack.unpack(m[2])[1] or tonumber(m[4] or 0)
local revision = math.max(tonumber(m[1] or m[3] or 0), tonumber(ARGV[1]))
call('UNLINK', unpack(KEYS))
call('HSET', META, 'gone', format('%d', revision), 'number', format('%d', number))
return 'ok'
