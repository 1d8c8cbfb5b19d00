-- The rules of leases. Placed between batch.lua and commit.lua. Twin: core/lease.py.
-- A lease is a flat list (see prelude.lua) that is never changed in place; false means that it is
-- free. Each operation takes the lease and returns the lease after it.

local function check_fence(lease, key, holder, fence)
  if not lease then refuse('fenced', key, fence, 0, false) end
  if lease[FENCE] ~= fence or lease[HOLDER] ~= holder then
    refuse('fenced', key, fence, lease[FENCE], lease[HOLDER])
  end
end

local function refuse_held(key, lease)
  refuse('held', key, lease[HOLDER], lease[FENCE], lease[UNTIL])
end

-- A copy of the lease without the `count` items from `at` on.
local function without(lease, at, count)
  local rest = {}
  for i = 1, #lease do
    if i < at or i >= at + count then rest[#rest + 1] = lease[i] end
  end
  return rest
end

-- The lease granted to the first waiter whose ticket is still valid, false if there is none.
local function pass_on(lease)
  for at = WAITERS, #lease, 3 do
    if lease[at + 2] > time_ms then
      local after = {lease[at], revision + 1, time_ms + lease[at + 1], lease[at + 1]}
      for i = at + 3, #lease do after[#after + 1] = lease[i] end
      return after
    end
  end
  return false
end

-- The position of the waiter `holder` in the list.
local function place_of(lease, key, holder)
  for at = WAITERS, lease and #lease or 0, 3 do
    if lease[at] == holder then return at end
  end
  refuse('fenced', key, 0, lease and lease[FENCE] or 0, lease and lease[HOLDER] or false)
end

local function grant(held, key, holder, ttl_ms, wait)
  local current = held
  if held and held[UNTIL] <= time_ms then current = pass_on(held) end
  if not current then return {holder, revision + 1, time_ms + ttl_ms, ttl_ms} end
  local is_known = current[HOLDER] == holder
  for at = WAITERS, #current, 3 do is_known = is_known or current[at] == holder end
  if wait == 0 or is_known then refuse_held(key, held) end
  local waiting = (#current - TTL) / 3
  if waiting >= LIMIT.LEASE_WAITERS_MAX then
    refuse('limit', 'LEASE_WAITERS_MAX', waiting + 1, key)
  end
  local after = without(current, 0, 0)
  after[#after + 1], after[#after + 2], after[#after + 3] = holder, ttl_ms, time_ms + ttl_ms
  return after
end

local function renew(held, key, holder, fence, ttl_ms)
  local ends, lasts = UNTIL, TTL
  if fence == 0 then
    local at = place_of(held, key, holder)
    ends, lasts = at + 2, at + 1
  else
    check_fence(held, key, holder, fence)
  end
  local after = without(held, 0, 0)
  after[ends], after[lasts] = time_ms + ttl_ms, ttl_ms
  return after
end

-- The accounts of the names in `after` (`by` of read_lease), when a commit of `account` turned
-- `before` into it. Names that are in `before` keep their account.
local function charge(before, after, account)
  local known, by = {}, {}
  for at = WAITERS, before and #before or 0, 3 do
    known[before[at]] = before.by[before[at]] or ''
  end
  for at = WAITERS, #after, 3 do by[after[at]] = known[after[at]] or account end
  local holder = after[HOLDER]
  if before and before[HOLDER] == holder and before[FENCE] == after[FENCE] then
    by[holder] = before.by[holder]
  else
    by[holder] = known[holder] or account
  end
  return by
end

-- Whether the two differ only in deadlines.
local function is_prolonged(before, after)
  if not before or #before ~= #after then return false end
  for i = 1, #after do
    local is_deadline = i == UNTIL or i >= WAITERS and (i - WAITERS) % 3 == 2
    if not is_deadline and before[i] ~= after[i] then return false end
  end
  return true
end

local function release(held, key, holder, fence)
  if fence == 0 then return without(held, place_of(held, key, holder), 3) end
  check_fence(held, key, holder, fence)
  return pass_on(held)
end

local function expire(held, key, holder, fence)
  check_fence(held, key, holder, fence)
  if held[UNTIL] > time_ms then refuse_held(key, held) end
  return pass_on(held)
end

local LEASE_OPERATIONS = {g = grant, n = renew, r = release, e = expire}
