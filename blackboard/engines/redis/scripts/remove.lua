-- Removes a board for good. A record of its last revision stays: services that still have it open
-- learn from it that it was removed (open.lua), and a later board of that name begins above it.
--   KEYS  see prelude.lua
--   ARGV  1 a revision that the board had at least
-- Reply: "ok", also when it was removed before, or while it was being made.
local m = call('HMGET', META, 'rev', 'e', 'gone', 'number')
local number = m[2] and cmsgpack.unpack(m[2])[1] or tonumber(m[4] or 0)
local revision = math.max(tonumber(m[1] or m[3] or 0), tonumber(ARGV[1]))
call('UNLINK', unpack(KEYS))
call('HSET', META, 'gone', format('%d', revision), 'number', format('%d', number))
return 'ok'
