-- Reads entries as of one revision. Writes nothing.
--   KEYS  see prelude.lua
--   ARGV  1 bytes after which the reply ends (it holds at least one entry)   2 what is read:
--         "keys"   3.. the keys; more bytes than allowed are refused, never left out
--         "ranges" 3 most entries, 4 "values", or "keys" to leave the values out, 5.. first and
--         last (in the form of ZRANGEBYLEX) of each range
--         "backwards" likewise, with last and first (in the form of ZREVRANGEBYLEX)
--         "children" as "ranges", but below a prefix, by directory; "children backwards" likewise.
--         ARGV 5 is the length of that prefix with its slash, 6.. the ranges
--         "due"    3 most entries: expired ones, the earliest first; 4 expired by then, "" = now
-- Reply: {} when the board must be opened first; else {revision, epoch, is_cut, entries}, the
--        entries flat: key, field of {board}:n, large value or nil. `is_cut` says that there are
--        more than these. Of children also the last item (a key; of a directory the first one that
--        was found in it), and the directories, flat: name, how many keys.
local bytes_max, what = tonumber(ARGV[1]), ARGV[2]
local revision, _, _, epoch = opened()
if not revision then return {} end

local KEY_ONLY = 'k'  -- kind of an entry in a reply that leaves its value out

local entries, bytes, is_cut = {}, 0, false
local keys, most, keys_only = {}, nil, false
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

-- The number of keys in a directory from `key` on, up to the end of the range (backwards: down to
-- its beginning). A range that ends before it begins has none.
local function count_keys(directory, key, bound, is_backwards)
  local function count(first, last) return call('ZLEXCOUNT', INDEX, first, last) end
  if is_backwards then
    local below = '[' .. directory .. '/'
    return count(below, '[' .. key) - count(below, '(' .. sub(bound, 2))
  end
  local above = '(' .. directory .. '0'
  return count('[' .. key, above) - count('[' .. sub(bound, 2), above)
end

-- Adds what lies directly below a prefix, one search for each item: behind a directory the search
-- goes on where it ends.
local function read_children(is_backwards)
  most, keys_only = tonumber(ARGV[3]), ARGV[4] == 'keys'
  local depth, how = tonumber(ARGV[5]), is_backwards and 'ZREVRANGEBYLEX' or 'ZRANGEBYLEX'
  local last, directories, items = false, {}, 0
  for i = 6, #ARGV, 2 do
    local from, bound = ARGV[i], ARGV[i + 1]
    while true do
      local key = call(how, INDEX, from, bound, 'LIMIT', 0, 1)[1]
      if not key then break end
      local slash = string.find(key, '/', depth + 1, true)
      local directory = slash and sub(key, 1, slash - 1)
      local count = #directories
      local goes_on = directory and directories[count - 1] == directory
      if not goes_on then
        if items >= most or bytes >= bytes_max then
          return {revision, epoch, 1, entries, last, directories}
        end
        items, last = items + 1, key
      end
      if goes_on then
        directories[count] = directories[count] + count_keys(directory, key, bound, is_backwards)
      elseif directory then
        directories[count + 1] = directory
        directories[count + 2] = count_keys(directory, key, bound, is_backwards)
        bytes = bytes + #directory
      else
        add(key, call('HGET', ENTRIES, key))
      end
      if directory then
        from = is_backwards and '(' .. directory .. '/' or '[' .. directory .. '0'
      else
        from = '(' .. key
      end
    end
  end
  return {revision, epoch, 0, entries, last, directories}
end

if what == 'children' then return read_children(false) end
if what == 'children backwards' then return read_children(true) end
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
  local by_ms = ARGV[4] == '' and format('%d', now_ms()) or ARGV[4]
  keys = call('ZRANGEBYSCORE', EXPIRY, '-inf', by_ms, 'LIMIT', 0, most)
end

is_cut = #keys > most
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
