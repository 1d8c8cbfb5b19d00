-- Raises a board's access number: a service must know the revocation record up to this revision to
-- commit under a token. It never falls.
--   KEYS  see prelude.lua
--   ARGV  1 that revision: the access number
-- Reply: {'ok', 'ok'}. A board that does not exist, is being made, or was not opened on this run of
--        the server has no number and gets none: the first commit under a token is refused, and
--        its service reads the record and runs this script.
local m = call('HMGET', META, 'run', 'access')
if is_run(m[1]) and tonumber(m[2] or -1) < tonumber(ARGV[1]) then
  call('HDEL', ENTRIES, '\0')  -- needs no memory, so what follows passes when there is none
  call('HSET', META, 'access', ARGV[1])
end
return {'ok', 'ok'}
