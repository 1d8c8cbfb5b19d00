-- Says up to which revision the record of revocations has to be known to whoever commits under a
-- token. It never falls.
--   KEYS  see prelude.lua
--   ARGV  1 that revision: the access number
-- Reply: {'ok', 'ok'}. A board that does not exist, is being made, or was not opened on this run of
--        the server has no number and gets none: the first one who commits there under a token is
--        refused, looks at the record himself, and calls this.
local m = call('HMGET', META, 'run', 'access')
if m[1] == server_run() and tonumber(m[2] or -1) < tonumber(ARGV[1]) then
  call('HDEL', ENTRIES, '\0')  -- out of memory, what follows a write that needs none still passes
  call('HSET', META, 'access', ARGV[1])
end
return {'ok', 'ok'}
