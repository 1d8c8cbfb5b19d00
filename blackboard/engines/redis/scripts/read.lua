-- Reads entries as of one revision. Writes nothing.
--   KEYS  see prelude.lua
--   ARGV  1 bytes after which the reply ends (it holds at least one entry)   2 what is read:
--         "keys"   3.. the keys; more bytes than allowed are refused, never left out
--         "ranges" 3 most entries, 4 "values", or "keys" to leave the values out, 5.. first and
--         last (in the form of ZRANGEBYLEX) of each range
--         "backwards" likewise, with last and first (in the form of ZREVRANGEBYLEX)
--         "due"    3 most entries: expired ones, the earliest first
-- Reply: {} when the board must be opened first; else {revision, epoch, is_cut, entries}, the
--        entries flat: key, field of {board}:n, large value or nil. `is_cut` says that there are
--        more than these.
local bytes_max, what = tonumber(ARGV[1]), ARGV[2]
local revision, _, _, epoch = opened()
if not revision then return {} end

local KEY_ONLY = 'k'  -- kind of an entry in a reply that leaves its value out

local keys, most, keys_only = {}, nil, false
if what == 'keys' then
  for i = 3, #ARGV do keys[i - 2] = ARGV[i] end
  most = #keys
elseif what == 'ranges' or what == 'backwards' then
  most, keys_only = tonumber(ARGV[3]), ARGV[4] == 'keys'
  local how = what == 'ranges' and 'ZRANGEBYLEX' or 'ZREVRANGEBYLEX'
  for i = 5, #ARGV, 2 do
    if #keys > most then break end
    local room = most + 1 - #keys
    local some = call(how, INDEX, ARGV[i], ARGV[i + 1], 'LIMIT', 0, room)
    for _, key in ipairs(some) do keys[#keys + 1] = key end
  end
else
  most = tonumber(ARGV[3])
  keys = call('ZRANGEBYSCORE', EXPIRY, '-inf', format('%d', now_ms()), 'LIMIT', 0, most)
end

local entries, bytes, is_cut = {}, 0, #keys > most
local function add(key, raw)
  local large = false
  if keys_only then
    raw = sub(raw, 1, 32) .. KEY_ONLY .. sub(raw, 34, 34 + byte(raw, 34))
  else
    large = byte(raw, 33) == LARGE and call('HGET', ENTRIES, '\0' .. key)
  end
  local count = #entries
  entries[count + 1], entries[count + 2], entries[count + 3] = key, raw, large
  bytes = bytes + #key + #raw + (large and #large or 0)
end

for first = 1, math.min(#keys, most), 32 do
  local last = math.min(first + 31, #keys, most)
  local found = call('HMGET', ENTRIES, unpack(keys, first, last))
  for i = first, last do
    if bytes >= bytes_max then
      return {revision, epoch, 1, entries}
    end
    local raw = found[i - first + 1]
    if is_live(raw) then add(keys[i], raw) end
  end
end
return {revision, epoch, is_cut and 1 or 0, entries}
