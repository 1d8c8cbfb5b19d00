-- Decides many commits on ONE board, each on its own, in order. Twin: `decide` of core/model.py.
--   KEYS  see prelude.lua
--   ARGV  1 limits, msgpack map of name to number (blackboard/limits.py)
--         2 msgpack array: how many large values each commit has
--         3 the access number at which the tokens of these commits were checked; '' = no tokens
--         then for each commit: control, body (wire/codec.py), its large values
-- Reply: nothing was decided and it is {} when the board must be opened on this run of the server
--        first, {-1, access number of the board ('' = none)} when ARGV[3] does not reach that, {ms}
--        when it is held for so long; else {revision, time_ms, outcome of each commit ...}, where
--        an outcome is
--        {1, revision, results?}        committed; results only if an operation computed something
--        {3, revision, results}         committed without a log entry: it has the newest revision,
--                                       and its answer is not kept
--        {2, revision, time_ms, results} the same commit was applied before
--        {0, code, field ...}           refused, nothing was written
-- An error reply means that the log and the state disagree (a right is missing, a bug): the log is
-- then ahead of `rev`, and every later commit is refused, because its XADD is.
--
-- Redis does not roll back, so everything is decided on tables first. The log entry is a commit's
-- first write and the only one that can be refused. What the batch changes is written at its end
-- (or before a read by range), each field once; the script as a whole is atomic.

-- --- the checks, in the order of core/model.py ---------------------------------------------------

-- A lane's answer: revision, time_ms, overwritten, step as 8-byte integers, length of the
-- incarnation's name, the name, results.
local function known(c)
  local answer = answers[c.lane]
  if not answer then return nil end
  local at, when, overwritten, step, size = unpack_integers('>I8I8I8I8B', answer)
  if sub(answer, 34, 33 + size) ~= c.incarnation then
    if c.since >= 0 then
      if overwritten > c.since then refuse('unknown') end
    elseif c.known >= 0 and overwritten > c.known and c.epoch == epoch_id then
      refuse('too_old', revision)  -- of another epoch: refused for that
    end
    return nil
  end
  if c.step == step then return {2, at, when, sub(answer, 34 + size)} end
  if c.step < step then refuse('superseded', step) end
end

local function at_most(limit, count, where, account)
  if count > LIMIT[limit] then refuse('limit', limit, count, where or false, account) end
end

local function check_limits(c)
  if c.begins then
    at_most('RESTORE_CHANGES_MAX', #c.ops, 'ops')
  elseif #c.ops == 0 then
    refuse('empty')
  else
    at_most('OPERATIONS_MAX', #c.ops, 'ops')
  end
  at_most('OPERATIONS_MAX', #c.conditions / 3, 'conditions')
  at_most('FENCES_MAX', #c.fences / 3, 'fences')
  at_most('BASED_ON_MAX', #c.based_on / 2, 'based_on')
end

-- A frozen board accepts restores, the service's own commits, and commits that only renew or
-- release leases. Twin: `_passes_freeze` of core/model.py.
local function check_frozen(c)
  if c.begins or c.agent == '~system' then return end
  local only_keeps = true
  for _, op in ipairs(c.ops) do
    only_keeps = only_keeps and string.find('nr', op[1], 1, true)
  end
  if only_keeps then return end
  local raw = entries[FROZEN]
  local revision, _, since_ms = unpack_integers('>I8I8I8', raw)
  refuse('frozen', value_of(raw), since_ms, revision)
end

-- A restore (`begins` is its epoch: number, id, cause, from_revision, revision) takes effect as the
-- revision for which it was computed, or not at all.
local function check_begins(c)
  local begins = c.begins
  local is_next = begins[1] == cmsgpack.unpack(epoch)[1] + 1 and begins[3] == 'restore'
  if not (is_next and begins[4] < begins[5]) then refuse('begins') end
  for i = 1, #c.ops do
    if not string.find('bBd', c.ops[i][1], 1, true) then refuse('restore') end
  end
  if begins[5] ~= revision + 1 then refuse('moved', begins[5] - 1, revision) end
end

-- When the checkpoint of the barrier `raw` asked for the state; nil if there is none, or its time
-- is over.
local function asked_at(raw)
  if not is_live(raw) then return nil end
  local asked, _, _, expires_at_ms = unpack_integers('>I8I8I8I8', raw)
  if expires_at_ms == 0 or expires_at_ms > time_ms then return asked end
end

-- While a checkpoint waits for the state of an agent, the agent may only deliver it and renew its
-- leases. So the cut has no state of it without the memory that belongs to it.
local function check_barrier(c)
  local asked = asked_at(entries[c.barrier]) or asked_at(entries[c.cut])
  if not asked then return end
  local only_leases = true
  for _, op in ipairs(c.ops) do
    if op[1] == 'd' and op[2] == c.barrier then return end
    only_leases = only_leases and string.find('gnre', op[1], 1, true)
  end
  if not only_leases then refuse('barrier', c.barrier, asked) end
end

local function conflict(key, expected)
  local raw = entry(key)
  if not raw then refuse('conflict', key, expected, 0, false, 0, revision, false) end
  local at = unpack_integers('>I8', raw)
  if is_live(raw) then
    local current = byte(raw, 33) == VALUE and value_of(raw)
    refuse('conflict', key, expected, at, author_of(raw), at, revision, current)
  end
  if at < oldest then refuse('conflict', key, expected, 0, false, 0, revision, false) end
  refuse('conflict', key, expected, 0, author_of(raw), at, revision, false)
end

local function check_key(key, expected)
  local raw = entry(key)
  local live = is_live(raw)
  local actual = live and unpack_integers('>I8', raw) or 0
  if actual ~= expected and not (live and expected == -1) then conflict(key, expected) end
end

-- `looked`: how many keys the prefix conditions of this commit have scanned.
local function check_prefix(prefix, since, looked)
  if since > revision then refuse('future', since, revision) end
  if since < oldest - 1 then refuse('compacted', since, oldest) end
  flush()
  local last = namespace_of(prefix) == prefix and '/~' or nil  -- the runtime's branches sort last
  local living = below('', prefix, looked.living, last)
  local removed = below('\1', prefix, looked.removed, last)
  looked.living, looked.removed = looked.living + #living, looked.removed + #removed
  for i = 1, #removed do removed[i] = sub(removed[i], 2) end
  for _, keys in ipairs({living, removed}) do
    fetch(ENTRIES, keys, entries)
    for _, key in ipairs(keys) do
      if unpack_integers('>I8', entries[key]) > since then conflict(key, since) end
    end
  end
end

-- --- the operations: what the commit would change, on top of the board ---------------------------

local draft  -- of the commit being decided: values by key (false = removed) in order of first touch

local function live_size(key)
  local raw = entry(key)
  return is_live(raw) and size_of(raw) or nil
end

local function exists(key)
  local value = draft.values[key]
  if value ~= nil then return value ~= false end
  return is_live(entry(key))
end

local function set(key, value, expires_at_ms)
  if value ~= false and type(value) ~= 'string' then error('not a value') end
  if draft.values[key] == nil then
    draft.count = draft.count + 1
    draft.keys[draft.count] = key
  end
  draft.values[key] = value
  draft.expires[key] = expires_at_ms
end

local function drafted_lease(key)
  local lease = draft.leases[key]
  if lease ~= nil then return lease end
  return lease_of(key)
end

local IDENTITY = '^private/[^/]+/~identity$'

-- Add a lease to the counts by account (and '' for identities), or remove it (-1).
local function hold(sums, key, lease, times)
  if not lease then return end
  for at = WAITERS - 3, #lease, 3 do
    local name = lease.by[lease[at < WAITERS and HOLDER or at]]
    if name and name ~= '' then sums[name] = (sums[name] or 0) + times end
  end
  if string.find(key, IDENTITY) then sums[''] = (sums[''] or 0) + times end
end

local function held(name)
  local stored = counts[name]
  if not stored then
    stored = tonumber(call('HGET', META, 'h:' .. name) or 0)
    counts[name] = stored
  end
  return stored + (draft.held[name] or 0)
end

local function set_lease(key, lease, account)
  if lease then lease.by = charge(lease_of(key), lease, account) end
  hold(draft.held, key, drafted_lease(key), -1)
  hold(draft.held, key, lease, 1)
  if draft.leases[key] == nil then draft.lease_count = draft.lease_count + 1 end
  draft.leases[key] = lease
end

local function expiry(ttl_ms)
  if ttl_ms ~= NO_LIMIT then return time_ms + ttl_ms end
end

local KINDS = {
  [0xc0] = 'null', [0xc1] = 'unknown', [0xc2] = 'boolean', [0xc3] = 'boolean', [0xc4] = 'bytes',
  [0xc5] = 'bytes', [0xc6] = 'bytes', [0xc7] = 'unknown', [0xc8] = 'unknown', [0xc9] = 'unknown',
  [0xca] = 'float', [0xcb] = 'float', [0xd9] = 'string', [0xda] = 'string', [0xdb] = 'string',
  [0xdc] = 'list', [0xdd] = 'list', [0xde] = 'map', [0xdf] = 'map',
}
local function kind_of(first)
  if KINDS[first] then return KINDS[first] end
  if first < 0x80 or first >= 0xe0 then return 'integer' end
  if first < 0x90 then return 'map' end
  if first < 0xa0 then return 'list' end
  if first < 0xc0 then return 'string' end
  return first < 0xd4 and 'integer' or 'unknown'
end

local FORMS = {[0xcc] = '>I1', [0xcd] = '>I2', [0xce] = '>I4', [0xcf] = '>I8',
  [0xd0] = '>i1', [0xd1] = '>i2', [0xd2] = '>i4', [0xd3] = '>i8'}
-- The integer that msgpack bytes encode, nil if they do not. Twin: `read_integer` (core/commit.py).
local function integer(value)
  local first, number = byte(value)
  if first < 0x80 then
    number = first
  elseif first >= 0xe0 then
    number = first - 256
  elseif FORMS[first] then
    number = unpack_integers(FORMS[first], value, 2)
  end
  if number and number <= LIMIT.INTEGER_MAX and number >= -LIMIT.INTEGER_MAX then return number end
end

local function increment(position, key, by)
  local number, first = 0, nil
  if exists(key) then
    local value = draft.values[key]
    if not value then
      local raw = entry(key)
      if byte(raw, 33) == VALUE then
        value = value_of(raw)
      else
        first = byte(raw, #raw)
      end
    end
    number = value and integer(value)
    if not number then refuse('type', key, kind_of(first or byte(value))) end
  end
  local total = number + by
  -- Beyond it, a double no longer holds the sum exactly: the caller adds for the message.
  if total > LIMIT.INTEGER_MAX or total < -LIMIT.INTEGER_MAX then
    refuse('overflow', position, number)
  end
  set(key, cmsgpack.pack(total))
  return total
end

local function append(prefix, value, ttl_ms)
  local index = draft.next_item[prefix] or tonumber(entry('#' .. prefix) or 0)
  local key = prefix .. '/' .. format('%010d', index)
  if #key > LIMIT.KEY_BYTES_MAX then refuse('limit', 'KEY_BYTES_MAX', #key, prefix) end
  if exists(key) then conflict(key, 0) end
  draft.next_item[prefix] = index + 1
  set(key, value, expiry(ttl_ms))
  return key
end

-- A restored item may have an index that the board has no record of: `append` continues above it.
local function count_item(key, item)
  if not item then return end
  local prefix = string.match(key, '^(.*)/')
  local index = draft.next_item[prefix] or tonumber(entry('#' .. prefix) or 0)
  draft.next_item[prefix] = math.max(index, item + 1)
end

local function delete_prefix(prefix)
  flush()
  local found, doomed, start = below('', prefix, draft.looked), {}, prefix .. '/'
  draft.looked = draft.looked + #found
  local is_listed, is_sorted = {}, true
  for _, key in ipairs(found) do is_listed[key] = true end
  for i = 1, draft.count do
    local key = draft.keys[i]
    if sub(key, 1, #start) == start and not is_listed[key] then
      found[#found + 1] = key
      is_sorted = false
    end
  end
  if not is_sorted then table.sort(found, bytewise) end
  fetch(ENTRIES, found, entries)
  for _, key in ipairs(found) do
    if exists(key) then doomed[#doomed + 1] = key end
  end
  draft.removed = draft.removed + #doomed
  if draft.removed > LIMIT.OPERATIONS_MAX then
    refuse('limit', 'OPERATIONS_MAX', draft.removed, prefix)
  end
  for _, key in ipairs(doomed) do set(key, false) end
  return doomed
end

-- Refuses a lease when the board has its full number of them, or of this kind.
local function check_room(key)
  local count = call('HLEN', LEASES) + draft.lease_count
  if count > LIMIT.LEASES_MAX then
    refuse('limit', 'LEASES_MAX', LIMIT.LEASES_MAX + 1, key)
  end
  if not string.find(key, IDENTITY) then at_most('LEASES_ORDINARY_MAX', count - held(''), key) end
end

-- Refuses a lease when the account holds, or waits for, its full share.
local function check_share(key, lease, account)
  local count, waiting = held(account), 0
  if count > LIMIT.LEASES_PER_ACCOUNT_MAX then
    refuse('limit', 'LEASES_PER_ACCOUNT_MAX', count, key, account)
  end
  for at = WAITERS, #lease, 3 do
    if lease.by[lease[at]] == account then waiting = waiting + 1 end
  end
  if waiting > LIMIT.LEASE_WAITERS_PER_ACCOUNT_MAX then
    refuse('limit', 'LEASE_WAITERS_PER_ACCOUNT_MAX', waiting, key, account)
  end
end

local function change_lease(c, code, key, op)
  local before = drafted_lease(key)
  if code == 'g' and not before then check_room(key) end
  local after = LEASE_OPERATIONS[code](before, key, op[3], op[4], op[5])
  set_lease(key, after, c.account)
  if code == 'g' then check_share(key, after, c.account) end
  return after and without(after, TTL, 1) or {}
end

-- Whether an operation only removes. The removal that supersedes a lane does more than that.
local function removes(op)
  return op[1] == 'x' or op[1] == 'd' and sub(op[2], -12) ~= '/~superseded'
end

-- Whether the commit makes no log entry: it only moved deadlines, which the log does not keep, or
-- removed absent keys. A retry that removes makes one: an earlier attempt may still be in flight.
local function tells_nothing(c)
  if draft.count > 0 then return false end
  for _, op in ipairs(c.ops) do
    if op[1] ~= 'n' and (c.since >= 0 or not removes(op)) then return false end
  end
  for key, lease in pairs(draft.leases) do
    if not is_prolonged(lease_of(key), lease) then return false end
  end
  return not c.begins
end

-- Apply one operation to the draft; returns its result, or false.
local function apply(c, position, op)
  local code, path = op[1], op[2]
  if code == 'p' then
    set(path, op[3], expiry(op[4]))
  elseif code == 'P' then
    set(path, c.large[op[3]], expiry(op[4]))
  elseif code == 'b' or code == 'B' then
    if not c.begins then refuse('put_back') end
    local value = op[3]  -- false: it is removed
    if code == 'B' then value = c.large[value] end
    set(path, value, op[4] ~= NO_LIMIT and op[4] or nil)
    count_item(path, op[5])
  elseif code == 'i' then
    return increment(position, path, op[3])
  elseif code == 'a' then
    return append(path, op[3], op[4])
  elseif code == 'A' then
    return append(path, c.large[op[3]], op[4])
  elseif code == 'd' then
    if not exists(path) then return 0 end
    set(path, false)
    return 1
  elseif code == 'x' then
    return delete_prefix(path)
  else
    return change_lease(c, code, path, op)
  end
  return false
end

local function add(sums, name, keys, bytes)
  local sum = sums[name]
  if sum then
    sum.keys, sum.bytes = sum.keys + keys, sum.bytes + bytes
  else
    sums[name] = {keys = keys, bytes = bytes}
    sums[#sums + 1] = name
  end
end

-- Add to the share of an account. The service, whose name begins with a ~, has none.
local function add_share(sums, account, namespace, keys, bytes)
  if byte(account) == 126 or keys == 0 and bytes == 0 then return end
  add(sums, '@' .. account, keys, bytes)
  if sub(namespace, 1, 6) == 'inbox/' then add(sums, '@' .. account .. '/inbox', keys, bytes) end
end

-- By how much the draft makes each namespace, the board ("") and the shares of accounts grow: by
-- name, and in sums[1..] the names in order of appearance. Unchanged ones are left out.
local function growth(account)
  local sums = {}
  for i = 1, draft.count do
    local key = draft.keys[i]
    local value, before = draft.values[key], live_size(key)
    local keys, bytes = 0, 0
    if value then keys, bytes = 1, #key + #value end
    if before then keys, bytes = keys - 1, bytes - #key - before end
    if keys ~= 0 or bytes ~= 0 then
      add(sums, namespace_of(key), keys, bytes)
      add(sums, '', keys, bytes)
    end
    local whose = before and string.match(author_of(entry(key)), '^[^@]*')
    if before and whose ~= account then
      if value then add_share(sums, account, namespace_of(key), 1, #key + #value) end
      add_share(sums, whose, namespace_of(key), -1, -#key - before)
    else
      add_share(sums, account, namespace_of(key), keys, bytes)
    end
  end
  return sums
end

local function check_quotas(sums, mine)
  local only_own = true  -- only records of the service, which the board's quota does not bound
  for _, name in ipairs(sums) do
    only_own = only_own and (name == '' or name == 'system' or sub(name, 1, 1) == '@')
  end
  for _, name in ipairs(sums) do
    local used, more = used_of(name), sums[name]
    local kind, where, account = 'BOARD', name ~= '' and name, nil
    if sub(name, 1, 1) == '@' then
      kind, where, account = 'ACCOUNT', false, mine
      if sub(name, -6) == '/inbox' then kind = 'ACCOUNT_INBOX' end
    elseif where then
      kind = 'NAMESPACE'
    end
    local is_bounded = not only_own or name ~= ''
    if is_bounded and more.keys > 0 then
      at_most(kind .. '_KEYS_MAX', used.keys + more.keys, where, account)
    end
    if is_bounded and more.bytes > 0 then
      at_most(kind .. '_BYTES_MAX', used.bytes + more.bytes, where, account)
    end
  end
end

-- --- taking effect -------------------------------------------------------------------------------

local is_logged = false  -- between a commit's log entry and the end of its merge

local function slice(list, first, count)
  return {unpack(list, first, math.min(first + count - 1, #list))}
end

local BUNDLE = 64  -- large values of a restore per field: Lua cannot unpack more
local function log(c, results)
  local fields, count = {'b', c.body, 't', time_text, 'r', results}, 6
  local each = c.begins and BUNDLE or 1
  for i = 1, #c.large, each do
    fields[count + 1] = (c.begins and 'w' or 'v') .. ((i - 1) / each + 1)
    fields[count + 2] = c.begins and cmsgpack.pack(slice(c.large, i, each)) or c.large[i]
    count = count + 2
  end
  local answer = redis.pcall('XADD', LOG, format('%d-0', revision + 1), unpack(fields))
  if type(answer) == 'table' and answer.err then refuse('engine', answer.err) end
  is_logged = true
end

-- The draft's change of one key becomes part of the board.
local function merge_key(key, value, author, stamp)
  local old = entry(key)
  local live = is_live(old)
  if not live and not value then return end
  local since = live and value and created_at(old)
  if since then
    author = author .. '\0' .. since
    if is_older then fresh_usage.run, fresh_usage.format = marked_run(), FORMAT end
  end
  author = string.char(#author) .. author
  local had_expiry = live and sub(old, 25, 32) ~= NEVER
  local expires_at_ms = value and draft.expires[key]
  local head_of = stamp .. (live and sub(old, 9, 16) or stamp) .. time_bytes
    .. (expires_at_ms and pack('>I8', expires_at_ms) or NEVER)
  local raw
  if not value then
    raw = head_of .. 't' .. author
  elseif #value > LIMIT.VALUE_INLINE_BYTES_MAX then
    raw = head_of .. 'L' .. author .. pack('>I4B', #value, byte(value))
    fresh_entries['\0' .. key] = value
  else
    raw = head_of .. 'v' .. author .. value
  end
  if live and byte(old, 33) == LARGE and byte(raw, 33) ~= LARGE then
    fresh_entries['\0' .. key] = false
  end
  if value and not live then
    fresh_members[key] = 0
    if old then fresh_members['\1' .. key] = false end
  elseif not value then
    fresh_members[key] = false
    fresh_members['\1' .. key] = 0
  end
  if expires_at_ms then
    fresh_expiries[key] = format('%d', expires_at_ms)
  elseif had_expiry then
    fresh_expiries[key] = false
  end
  entries[key], fresh_entries[key] = raw, raw
end

local function merge_leases()
  for name, more in pairs(draft.held) do
    if more ~= 0 then
      counts[name] = math.max(0, held(name))
      fresh_usage['h:' .. name] = counts[name] > 0 and format('%d', counts[name])
    end
  end
  draft.held = {}
  for key, lease in pairs(draft.leases) do
    if lease then
      leases[key] = write_lease(lease)
      call('HSET', LEASES, key, leases[key])
    else
      leases[key] = false
      call('HDEL', LEASES, key)
    end
  end
end

-- An epoch voids every lease with its queue, and ends the hold.
local function merge_epoch(begins)
  epoch_id, epoch = begins[2], cmsgpack.pack(begins)
  fresh_usage.epoch, fresh_usage.e, fresh_usage.hold = epoch_id, epoch, false
  local found, sums = call('HGETALL', LEASES), {}
  for i = 1, #found, 2 do
    if found[i] ~= '' then
      hold(sums, found[i], read_lease(found[i + 1], LIMIT.LEASE_TTL_MS, time_ms), 1)
    end
  end
  for name in pairs(sums) do counts[name], fresh_usage['h:' .. name] = 0, false end
  call('DEL', LEASES)
  call('HSET', LEASES, '', '')
  for key in pairs(leases) do leases[key] = false end
end

local function merge_answer(c, stamp, results)
  local last, overwritten = answers[c.lane], 0
  if last then
    local at, _, older, _, size = unpack_integers('>I8I8I8I8B', last)
    overwritten = sub(last, 34, 33 + size) == c.incarnation and older or at
  end
  local answer = stamp .. time_bytes .. pack('>I8I8B', overwritten, c.step, #c.incarnation)
    .. c.incarnation .. results
  answers[c.lane], fresh_answers[c.lane] = answer, answer
end

local function merge(c, sums, results)
  flushed = false
  revision = revision + 1
  local stamp = pack('>I8', revision)
  for i = 1, draft.count do
    merge_key(draft.keys[i], draft.values[draft.keys[i]], c.agent, stamp)
  end
  for prefix, index in pairs(draft.next_item) do
    local text = format('%d', index)
    entries['#' .. prefix], fresh_entries['#' .. prefix] = text, text
  end
  merge_leases()
  if c.begins then merge_epoch(c.begins) end
  for _, name in ipairs(sums) do
    local field, more = 'u:' .. name, sums[name]
    local used = used_of(name)
    -- Entries from before shares were counted are in no share, so the sums must not become
    -- negative.
    used.keys, used.bytes = math.max(0, used.keys + more.keys), math.max(0, used.bytes + more.bytes)
    fresh_usage[field] = pack('>I8I8', used.keys, used.bytes)
  end
  merge_answer(c, stamp, results)
  is_logged = false
end

local function decide(c)
  local answer = known(c)
  if answer then return answer end
  if c.epoch ~= epoch_id then refuse('epoch', epoch, revision) end
  check_limits(c)
  if is_live(entries[FROZEN]) then check_frozen(c) end
  if c.begins then check_begins(c)
  elseif entries[c.barrier] or entries[c.cut] then check_barrier(c) end
  for i = 1, #c.fences, 3 do
    local key = c.fences[i]
    check_fence(lease_of(key), key, c.fences[i + 1], c.fences[i + 2])
  end
  local looked = {living = 0, removed = 0}
  for i = 1, #c.conditions, 3 do
    local check = c.conditions[i] == 'k' and check_key or check_prefix
    check(c.conditions[i + 1], c.conditions[i + 2], looked)
  end
  draft = {keys = {}, count = 0, values = {}, expires = {}, next_item = {}, looked = 0, removed = 0,
    leases = {}, lease_count = 0, held = {}}
  local results, is_computed, frees = {}, false, true
  for i, op in ipairs(c.ops) do
    results[i] = apply(c, i, op)
    is_computed = is_computed or results[i]
    frees = frees and string.find('dxre', op[1], 1, true)
  end
  local sums = growth(c.account)
  if not c.begins then check_quotas(sums, c.account) end
  check_writable(frees)
  local packed = cmsgpack.pack(is_computed and results or #results)
  if tells_nothing(c) then
    merge_leases()
    return {3, revision, packed}
  end
  log(c, packed)
  merge(c, sums, packed)
  if is_computed then return {1, revision, packed} end
  return {1, revision}
end

-- --- the batch -----------------------------------------------------------------------------------

local reply = {0, time_ms}
local commits = read_batch()
if held_until and tonumber(held_until) > time_ms then
  local restores = false
  for _, c in ipairs(commits) do restores = restores or c.begins end
  if not restores then return {tonumber(held_until) - time_ms} end
end
for number, c in ipairs(commits) do
  local outcome = {0, 'malformed', c.malformed}
  if not c.malformed then
    local ok
    ok, outcome = pcall(decide, c)
    if is_logged then error(outcome) end
    if not ok and outcome[1] ~= 0 then
      outcome = {0, 'malformed', tostring(outcome.err or outcome)}
    end
  end
  reply[number + 2] = outcome
end
flush()
reply[1] = revision
return reply
