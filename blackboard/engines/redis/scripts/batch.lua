-- The arguments of commit.lua: decodes every commit of a batch, and reads what they refer to with a
-- few commands for all of them. A commit that cannot be decoded is refused alone. Placed between
-- board.lua and lease.lua.
local wanted_entries, wanted_lanes, wanted_leases, wanted_usage = {}, {}, {}, {}

local function want(cache, wanted, name)
  if type(name) ~= 'string' then error('not a name') end
  if cache[name] == nil then
    cache[name] = false
    wanted[#wanted + 1] = name
  end
end

local PATHS = {p = 'e', P = 'e', b = 'e', B = 'e', i = 'e', d = 'e', a = 'c', A = 'c', x = 'p',
  g = 'l', n = 'l', r = 'l', e = 'l'}
local function want_operation(op)
  local kind, path = PATHS[op[1]], op[2]
  if kind == 'e' then
    want(entries, wanted_entries, path)
  elseif kind == 'c' then
    want(entries, wanted_entries, '#' .. path)
  elseif kind == 'l' then
    want(leases, wanted_leases, path)
    return
  elseif not kind then
    error('not an operation')
  end
  want(usage, wanted_usage, 'u:' .. namespace_of(path))
end

local barriers = {}  -- by agent: the key of its barrier, if a checkpoint waits for it
local function barrier_of(agent)
  -- A signature has an @ where the account ends, in place of the dot in the name.
  local key = 'system/barriers/' .. string.gsub(agent, '@', '.')
  barriers[agent] = key
  want(entries, wanted_entries, key)
  want(entries, wanted_entries, key .. '/cut')
  return key
end

local function read_commit(control, body, large)
  local checks, content = cmsgpack.unpack(control), cmsgpack.unpack(body)
  local c = {epoch = checks[1], since = checks[2], conditions = checks[3], fences = checks[4],
    known = checks[5], agent = content[1], lane = content[1] .. '/' .. content[2],
    incarnation = content[3], step = content[4], based_on = content[5], ops = content[7],
    begins = content[8], body = body, large = large,
    account = string.match(content[1], '^[^@]*'),
    barrier = barriers[content[1]] or barrier_of(content[1])}
  c.cut = c.barrier .. '/cut'
  want(usage, wanted_usage, 'u:@' .. c.account)
  if #c.agent > 246 or #c.incarnation > 255 then error('a name is too long') end
  want(answers, wanted_lanes, c.lane)
  for i = 1, #c.ops do want_operation(c.ops[i]) end
  for i = 1, #c.conditions, 3 do
    if c.conditions[i] == 'k' then want(entries, wanted_entries, c.conditions[i + 1]) end
  end
  for i = 1, #c.fences, 3 do want(leases, wanted_leases, c.fences[i]) end
  return c
end

local FROZEN = 'system/frozen'  -- it has an entry while the board is frozen

local function read_batch()
  local commits, at = {}, 4
  for number, large_count in ipairs(cmsgpack.unpack(ARGV[2])) do
    local large = {}
    for i = 1, large_count do large[i] = ARGV[at + 1 + i] end
    local ok, c = pcall(read_commit, ARGV[at], ARGV[at + 1], large)
    commits[number] = ok and c or {malformed = tostring(c)}
    at = at + 2 + large_count
  end
  want(usage, wanted_usage, 'u:')
  want(entries, wanted_entries, FROZEN)
  fetch(ANSWERS, wanted_lanes, answers)
  fetch(ENTRIES, wanted_entries, entries)
  fetch(LEASES, wanted_leases, leases)
  fetch(META, wanted_usage, usage)
  for name, raw in pairs(usage) do
    local keys, bytes = 0, 0
    if raw then keys, bytes = unpack_integers('>I8I8', raw) end
    usage[name] = {keys = keys, bytes = bytes}
  end
  return commits
end
