-- Raises the low-water mark of the log, then drops what lies below it, a slice per call.
--   KEYS  see prelude.lua
--   ARGV  1 the oldest revision to keep   2 where to continue: "" at first, then as replied
--         3 entries and tombstones that one call may process
-- Reply: {} when the board must be opened first; else {head, where to continue, or "done"}.
--
-- The mark rises first: from then on readers get Compacted, and commits no longer see the
-- tombstones.
local wanted, cursor, slice = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local revision, oldest, _, epoch = opened()
if not revision then return {} end

call('HDEL', ENTRIES, '\0')  -- needs no memory, so what follows passes when there is none
if math.min(wanted, revision + 1) > oldest then
  oldest = math.min(wanted, revision + 1)
  call('HSET', META, 'low', format('%d', oldest))
end

local function trim()
  local first = call('XRANGE', LOG, '-', '+', 'COUNT', 1)[1]
  if not first then return true end
  local revision_of_first = tonumber(string.match(first[1], '^%d+'))
  local upto = math.min(oldest, revision_of_first + slice)
  call('XTRIM', LOG, 'MINID', format('%d', upto))
  return upto == oldest
end

local function forget()
  local found = call('ZRANGEBYLEX', INDEX, cursor, '(\2', 'LIMIT', 0, slice)
  for _, member in ipairs(found) do
    local key = sub(member, 2)
    local raw = call('HGET', ENTRIES, key)
    if raw and struct.unpack('>I8', raw) < oldest then
      call('HDEL', ENTRIES, key)
      call('ZREM', INDEX, member)
    end
  end
  return #found == slice and '(' .. found[slice] or nil
end

if cursor == '' then
  cursor = trim() and '[\1' or ''
else
  cursor = forget() or 'done'
end
return {head(revision, oldest, epoch, now_ms()), cursor}
