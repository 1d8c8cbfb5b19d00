-- The board during one call of commit.lua: a cache of what was read, and what is still to be
-- written. No commit is decided here. Placed between prelude.lua and batch.lua.
local LIMIT = cmsgpack.unpack(ARGV[1])
local revision, oldest, epoch_id, epoch, held_until, access = opened()
if not revision then return {} end
-- A token was revoked since these tokens were checked, or the board has no access number yet.
if ARGV[3] ~= '' and (not access or tonumber(access) > tonumber(ARGV[3])) then
  return {-1, access or ''}
end
local time_ms = now_ms()
local time_text, time_bytes = format('%d', time_ms), pack('>I8', time_ms)
local NEVER, NO_LIMIT = pack('>I8', 0), -1

-- The board after the commits decided so far: a cache, and what `flush` has yet to write.
local entries, answers, leases, usage = {}, {}, {}, {}
local counts = {}  -- of leases, by account; see h: in prelude.lua
local fresh_entries, fresh_members, fresh_expiries = {}, {}, {}
local fresh_answers, fresh_usage = {}, {}
local flushed = true

local function refuse(...) error({0, ...}) end

-- --- reading -------------------------------------------------------------------------------------

-- Fill `cache` with `fields` of a hash, a bounded number of them per command.
local function fetch(hash, fields, cache)
  for first = 1, #fields, 2000 do
    local last = math.min(first + 1999, #fields)
    local found = call('HMGET', hash, unpack(fields, first, last))
    for i = first, last do cache[fields[i]] = found[i - first + 1] end
  end
end

local function entry(key)
  local raw = entries[key]
  if raw == nil then
    raw = call('HGET', ENTRIES, key)
    entries[key] = raw
  end
  return raw
end

-- An entry's value: inline only. Large ones are never needed, apart from their first byte.
local function value_of(raw) return sub(raw, 35 + byte(raw, 34)) end

local function size_of(raw)
  local at = 35 + byte(raw, 34)
  if byte(raw, 33) == LARGE then return (unpack_integers('>I4', raw, at)) end
  return #raw - at + 1
end

-- The usage of a namespace, of the board (''), or of an account's share (@<account>).
local function used_of(name)
  local field = 'u:' .. name
  local used = usage[field]
  if not used then
    local raw, keys, bytes = call('HGET', META, field), 0, 0
    if raw then keys, bytes = unpack_integers('>I8I8', raw) end
    used = {keys = keys, bytes = bytes}
    usage[field] = used
  end
  return used
end

local function author_of(raw)
  return string.match(sub(raw, 35, 34 + byte(raw, 34)), '^[^%z]*')
end

-- The time of an entry's create_revision, as 8 bytes; nil if it is not known.
local function created_at(raw)
  if sub(raw, 1, 8) == sub(raw, 9, 16) then return sub(raw, 17, 24) end
  local last = 34 + byte(raw, 34)
  if last > 43 and byte(raw, last - 8) == 0 then return sub(raw, last - 7, last) end
end

local function lease_of(key)
  local raw = leases[key]
  if raw == nil then
    raw = call('HGET', LEASES, key)
    leases[key] = raw
  end
  return raw and read_lease(raw, LIMIT.LEASE_TTL_MS, time_ms)
end

local function namespace_of(key)
  local first = sub(key, 1, 6)
  if first == 'public' or first == 'system' then return first end
  return string.match(key, '^%a+/[^/]+')
end

-- Up to OPERATIONS_MAX members of the index below `prefix` ("/" is directly followed by "0"),
-- including the `before` that the commit already scanned; up to `last`, if it is given.
local function below(mark, prefix, before, last)
  local found = call('ZRANGEBYLEX', INDEX, '[' .. mark .. prefix .. '/',
    '(' .. mark .. prefix .. (last or '0'), 'LIMIT', 0, LIMIT.OPERATIONS_MAX + 1 - before)
  if before + #found > LIMIT.OPERATIONS_MAX then
    refuse('limit', 'OPERATIONS_MAX', before + #found, prefix)
  end
  return found
end

-- Bytewise order: Lua's own `<` follows the locale of the server.
local function bytewise(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = byte(a, i), byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

-- --- writing -------------------------------------------------------------------------------------

local function send(command, key, arguments)
  for first = 1, #arguments, 4000 do
    call(command, key, unpack(arguments, first, math.min(first + 3999, #arguments)))
  end
end

-- Write `fields` of a hash; those that are false are removed.
local function write_hash(key, fields)
  local set, gone = {}, {}
  for name, content in pairs(fields) do
    if content then
      set[#set + 1] = name
      set[#set + 1] = content
    else
      gone[#gone + 1] = name
    end
  end
  send('HSET', key, set)
  send('HDEL', key, gone)
end

-- Write members of a sorted set with their scores; those that are false are removed.
local function write_set(key, members)
  local set, gone = {}, {}
  for name, score in pairs(members) do
    if score then
      set[#set + 1] = score
      set[#set + 1] = name
    else
      gone[#gone + 1] = name
    end
  end
  send('ZADD', key, set)
  send('ZREM', key, gone)
end

local function flush()
  if flushed then return end
  write_hash(ENTRIES, fresh_entries)
  write_set(INDEX, fresh_members)
  write_set(EXPIRY, fresh_expiries)
  write_hash(ANSWERS, fresh_answers)
  fresh_usage.rev = format('%d', revision)
  write_hash(META, fresh_usage)
  fresh_entries, fresh_members, fresh_expiries = {}, {}, {}
  fresh_answers, fresh_usage = {}, {}
  flushed = true
end

-- Whether the server accepts writes now. A write that changes nothing tests it once, because later
-- writes of this call would pass even out of memory. What only frees memory passes, because its
-- first write needs none.
local refusal
local function check_writable(frees)
  if refusal == nil then
    local answer = redis.pcall('ZADD', INDEX, 'XX', 0, '')
    refusal = type(answer) == 'table' and answer.err or false
  end
  if not refusal then return end
  if not (frees and string.find(refusal, '^%-?OOM')) then refuse('engine', refusal) end
  call('HDEL', ENTRIES, '\0')
end
