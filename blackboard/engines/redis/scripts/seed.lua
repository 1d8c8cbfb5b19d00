-- Makes a board that begins with entries of another one, in calls of bounded size. Until the last
-- of them the board cannot be opened: the field `seed` holds the name of the call of `Store.seed`
-- that makes it, and the first step removes what another call left there.
--   KEYS  see prelude.lua
--   ARGV  1 "begin"   2 the name   3 and 4, if a board is to be replaced: its revision, and the
--                     id of its epoch
--         1 "page"    2 the name   3.. msgpack lists, flat, of what to write: fields of {board}:n,
--                     scores and members of {board}:k and of {board}:x, fields of {board}:m
--         1 "end"     2 the name   3 epoch, msgpack   4 its id   5 its revision   6 time in ms
--         1 "undo"    2 the name
-- Reply: "ok"; "exists": there is such a board; "at <revision>": the board to be replaced has
-- another head; "lost": another call is making it or has removed it.
local step, name = ARGV[1], ARGV[2]

local function send(command, key, arguments)
  for first = 1, #arguments, 4000 do
    call(command, key, unpack(arguments, first, math.min(first + 3999, #arguments)))
  end
end

local function begin()
  local m = call('HMGET', META, 'rev', 'epoch', 'gone', 'number', 'seed')
  if m[5] == name then return 'ok' end  -- repeated, and may be late: after its pages
  if m[1] and not ARGV[3] then return 'exists' end
  if m[1] and (m[1] ~= ARGV[3] or m[2] ~= ARGV[4]) then return 'at ' .. m[1] end
  call('UNLINK', unpack(KEYS))
  call('HSET', META, 'seed', name)
  if m[3] then call('HSET', META, 'gone', m[3], 'number', m[4]) end
  return 'ok'
end

local function page()
  send('HSET', ENTRIES, cmsgpack.unpack(ARGV[3]))
  send('ZADD', INDEX, cmsgpack.unpack(ARGV[4]))
  send('ZADD', EXPIRY, cmsgpack.unpack(ARGV[5]))
  send('HSET', META, cmsgpack.unpack(ARGV[6]))
  return 'ok'
end

local function finish()
  local epoch, id, revision, time_ms = ARGV[3], ARGV[4], ARGV[5], ARGV[6]
  call('XADD', LOG, revision .. '-0', 'e', epoch, 't', time_ms)
  call('HSET', ANSWERS, '', '')
  call('HSET', ENTRIES, '', '')
  call('HSET', LEASES, '', '')
  call('ZADD', INDEX, 0, '')
  call('ZADD', EXPIRY, '+inf', '')
  call('HSET', META, 'run', marked_run(), 'rev', revision, 'low', revision, 'epoch', id, 'e', epoch,
    'format', FORMAT)
  call('HDEL', META, 'seed', 'gone', 'number')
  return 'ok'
end

if step == 'begin' then return begin() end
local m = call('HMGET', META, 'seed', 'epoch')
if step == 'end' and m[2] == ARGV[4] then return 'ok' end  -- done before, the answer was lost
if m[1] ~= name then return 'lost' end
if step == 'page' then return page() end
if step == 'end' then return finish() end
local gone = call('HMGET', META, 'gone', 'number')
call('UNLINK', unpack(KEYS))
if gone[1] then call('HSET', META, 'gone', gone[1], 'number', gone[2]) end
return 'ok'
