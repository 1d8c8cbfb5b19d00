-- The common beginning of all scripts; engines/redis/lua.py prepends it.
--
-- KEYS, the same list for every script, all of one hash slot and all existing from the board's
-- creation (a declared key that does not exist stops commits during a slot migration):
--   1 {board}:m    hash   rev, low (oldest revision in the log), epoch (its id), e (msgpack of its
--                         number, id, cause, from_revision, revision), run (see below), hold (until
--                         when other commits than a restore wait), access (access.lua),
--                         format (of this layout, see layout.py; the first boards have none),
--                         gaps (msgpack of the last revision before each epoch that began with this
--                         run, and of its first one: open.lua),
--                         u:<namespace> and u: (usage: keys, bytes as two 8-byte integers);
--                         u:@<account>, u:@<account>/inbox (the same of what it wrote last);
--                         h:<account> (leases held or waited for), h: (identities); while
--                         it is being made (seed.lua) there is seed, and no run: nothing else finds
--                         a board then; of one that was removed (remove.lua) there is nothing but
--                         gone (its last revision) and number (that of its last epoch)
--   2 {board}:log  stream id <revision>-0; b = commit's body, t = time in ms, r = results, v1.. =
--                         large values, or w1.. = msgpack lists of them (a restore); a marker of
--                         an epoch has e instead of b
--   3 {board}:i    hash   <agent>/<lane> -> the lane's last answer, see `answer` in commit.lua
--   4 {board}:n    hash   <key> -> entry or tombstone (below); \0<key> -> a large value;
--                         #<prefix> -> the next index that `append` gives there
--   5 {board}:k    zset   scores 0: <key> of each entry, \1<key> of each tombstone
--   6 {board}:x    zset   <key> -> when it expires
--   7 {board}:l    hash   <key> -> lease, see `read_lease` below; a renewal writes here and nowhere
--                         else
-- The empty field or member of each is a sentinel: it keeps the key in existence.
--
-- A field of {board}:n: mod_revision, create_revision, time_ms, expires_at_ms (0 = never) as 8-byte
-- big-endian integers; kind, one of the three below; the length of what says who and since when;
-- that: the author's name, and from format 2 on, if the entry was written again, a zero byte and
-- the time of create_revision as such an integer; then the value (VALUE), or 4 bytes of length and
-- the first byte of the large value (LARGE), or nothing. Twin: engines/redis/layout.py.
local META, LOG, ANSWERS, ENTRIES, INDEX, EXPIRY, LEASES =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local VALUE, LARGE, TOMBSTONE = 118, 76, 116  -- "v", "L", "t"
local call, byte, sub, format = redis.call, string.byte, string.sub, string.format
local pack, unpack_integers = struct.pack, struct.unpack

-- The id of the history that this server continues. It changes when the server process did
-- (restart, failover) and when the server began another history (a replica promoted, a primary
-- demoted and promoted again): only then can it hold less than was acknowledged. The script reads
-- it by itself, so a connection that was silently re-established cannot reach a board on another
-- run.
local function server_run()
  local info = call('INFO', 'server', 'replication')
  return string.match(info, '\nrun_id:(%x+)') .. string.match(info, '\nmaster_replid:(%x+)')
end

-- Field `run` of {board}:m: from format 2 on it begins with a mark, so that programs that know only
-- older formats find no open board, and their open.lua refuses it. A board of an older format gets
-- both fields with the first entry that has the form of format 2.
local FORMAT = '2'
local function marked_run() return FORMAT .. ' ' .. server_run() end

local is_older  -- whether the board is of an older format, once `is_run` was true
local function is_run(stored)
  local run = server_run()
  is_older = stored == run
  return is_older or stored == FORMAT .. ' ' .. run
end

local function now_ms()
  local time = call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- revision, oldest, epoch, time and number of log entries: engines/redis/layout.py reads this as a
-- Head
local function head(revision, oldest, epoch, time_ms)
  return {revision, oldest, epoch, time_ms, call('XLEN', LOG)}
end

-- revision, oldest, epoch's id, epoch, until when commits wait (false: they do not), access number
-- (false: not set yet); nothing when the board must be opened first (open.lua)
local function opened()
  local m = call('HMGET', META, 'run', 'rev', 'low', 'epoch', 'e', 'hold', 'access')
  if not is_run(m[1]) then return nil end
  return tonumber(m[2]), tonumber(m[3]), m[4], m[5], m[6], m[7]
end

-- A lease as a flat list: holder, fence, until_ms, ttl_ms, then of each who waits for it holder,
-- ttl_ms, until_ms; at its end a list of the accounts of these holders, in the same order, which is
-- kept here as a map from holder to account, `by`. An older form lacks the list, so their accounts
-- are not known. A still older one lacks the lease's ttl_ms; then it is at least the time that is
-- left.
local HOLDER, FENCE, UNTIL, TTL, WAITERS = 1, 2, 3, 4, 5
local function read_lease(raw, usual_ms, time_ms)
  local lease = cmsgpack.unpack(raw)
  local accounts = type(lease[#lease]) == 'table' and table.remove(lease) or {}
  if #lease % 3 == 0 then
    table.insert(lease, TTL, math.max(usual_ms, lease[UNTIL] - time_ms))
  end
  lease.by = {[lease[HOLDER]] = accounts[1]}
  for i = 2, #accounts do lease.by[lease[WAITERS + 3 * (i - 2)]] = accounts[i] end
  return lease
end

local function write_lease(lease)
  local parts, accounts = {}, {lease.by[lease[HOLDER]] or ''}
  for i = 1, #lease do parts[i] = lease[i] end
  for at = WAITERS, #lease, 3 do accounts[#accounts + 1] = lease.by[lease[at]] or '' end
  parts[#parts + 1] = accounts
  return cmsgpack.pack(parts)
end

local function is_live(raw) return raw and byte(raw, 33) ~= TOMBSTONE end
