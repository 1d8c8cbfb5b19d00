-- Makes sure that a board exists and belongs to this run of the server.
--   ARGV  1 id of an epoch, should one begin   2 revisions to skip then
--         3 the highest revision of this board that the caller has seen
--         4 id of the epoch to end ('' = none), if the head is still revision 5: another one begins
--         although the server is the same
--         6 the time to live of a lease that does not record its own
--         7 '1' if a board that was removed (remove.lua) is to begin again
--         8 the newest format of the layout that the caller knows
-- Reply: head, see prelude.lua; {} while the board is being made (seed.lua); {its last revision} if
-- it was removed; {'newer', its format} if that is one the caller does not know; {'torn', a
-- revision, the board's last one} if the server executed a part of a script: in both cases the
-- board is left as it is.
--
-- A restarted server may hold less than it acknowledged. The revisions that it lost must never be
-- given to other commits (readers may have seen them), so the next one lies far above, and a marker
-- in the log begins an epoch and says which revision survived.
--
-- An append-only file that ends in the middle of a script's writes loses them. But a server that
-- leaves their beginning in the file, and is not made to rewrite it, executes that at its next
-- start, together with the transaction that follows there. What it leaves is recognised: an entry
-- of the log above the board's revision, or in the gap before an epoch's first one, which was never
-- issued; or keys that are gone. A commit writes its log entry first. The board is refused: what
-- the part replaced is not here any more, and readers were told that the commit is lost.
local time_ms = now_ms()
local m = call('HMGET', META, 'run', 'rev', 'low', 'e', 'seed', 'epoch', 'gone', 'number', 'format',
  'gaps')
if m[9] and tonumber(m[9]) > tonumber(ARGV[8]) then return {'newer', tonumber(m[9])} end
if m[5] then return {} end
local gone = m[7] and tonumber(m[7])
if gone and ARGV[7] ~= '1' then return {gone} end
local ends = m[1] and m[6] == ARGV[4] and m[2] == ARGV[5]
if is_run(m[1]) and not ends then return head(tonumber(m[2]), tonumber(m[3]), m[4], time_ms) end

local survived, seen = tonumber(m[2] or 0), tonumber(ARGV[3])
local gaps = {}  -- before the epochs of this run, each from the last revision to the next one
if m[10] then
  gaps = cmsgpack.unpack(m[10])
elseif m[4] then
  local last = cmsgpack.unpack(m[4])
  if last[3] == 'engine' then gaps = {last[4], last[5]} end
end

-- A revision in the log that no commit was answered, or 0 if keys are gone; nil if all is well.
local function torn()
  if call('HEXISTS', ENTRIES, '') == 0 then return 0 end
  local bounds = {survived, math.huge, unpack(gaps)}
  for i = 1, #bounds, 2 do
    local last = bounds[i + 1] == math.huge and '+' or format('%d-0', bounds[i + 1] - 1)
    local found = call('XRANGE', LOG, format('%d-0', bounds[i] + 1), last, 'COUNT', 1)[1]
    if found then return tonumber(string.match(found[1], '^%d+')) end
  end
end
if m[1] and not ends then
  local at = torn()
  if at then return {'torn', at, survived} end
  gaps = {}
end

local number, cause, revision, oldest = 1, 'created', 0, 1
if gone then
  number, revision = tonumber(m[8]) + 1, math.max(gone, seen) + tonumber(ARGV[2])
  oldest = revision
elseif m[1] or seen > 0 then
  number = m[4] and cmsgpack.unpack(m[4])[1] + 1 or 2
  cause, revision = 'engine', math.max(survived, seen) + tonumber(ARGV[2])
  oldest = m[3] and tonumber(m[3]) or 1
end

-- Gives each lease and each ticket its full time to live again: no clock of this server can tell
-- how long they could not be renewed.
local function date_leases()
  local found = call('HGETALL', LEASES)
  for i = 1, #found, 2 do
    if found[i] ~= '' then
      local lease = read_lease(found[i + 1], tonumber(ARGV[6]), time_ms)
      lease[UNTIL] = time_ms + lease[TTL]
      for at = WAITERS, #lease, 3 do lease[at + 2] = time_ms + lease[at + 1] end
      call('HSET', LEASES, found[i], write_lease(lease))
    end
  end
end

local epoch = cmsgpack.pack({number, ARGV[1], cause, survived, revision})
-- The first write, and the only one that can be refused (out of memory, read-only replica ...).
if not m[1] then
  call('XADD', LOG, '0-1', 'e', '')
  call('XDEL', LOG, '0-1')
  call('HSET', ANSWERS, '', '')
  call('HSET', ENTRIES, '', '')
  call('HSET', LEASES, '', '')
  call('ZADD', INDEX, 0, '')
  call('ZADD', EXPIRY, '+inf', '')
else
  -- Out of memory, a board must still open, or nothing could be deleted any more. After a first
  -- write that needs no memory, the others pass.
  call('HDEL', ENTRIES, '\0')
  date_leases()
end
if revision > 0 then
  gaps[#gaps + 1], gaps[#gaps + 2] = survived, revision
  while #gaps > 16 do table.remove(gaps, 1) end
  call('HSET', META, 'gaps', cmsgpack.pack(gaps))
  call('XADD', LOG, format('%d-0', revision), 'e', epoch, 't', format('%d', time_ms))
end
call('HSET', META, 'run', marked_run(), 'format', FORMAT,
  'rev', format('%d', revision), 'low', format('%d', oldest), 'epoch', ARGV[1], 'e', epoch)
call('HDEL', META, 'gone', 'number')
call('HDEL', META, 'access')  -- it may be outdated: the next commit under a token sets it again
return head(revision, oldest, epoch, time_ms)
