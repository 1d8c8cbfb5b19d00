-- Reads the log after a revision, with the board's head, as of one moment. Writes nothing.
--   KEYS  see prelude.lua
--   ARGV  1 the revision   2 most entries   3 bytes after which the reply ends
-- Reply: {} when the board must be opened first; else {head, entries} with the entries as XRANGE
--        gives them: none if the revision lies below the low-water mark or above the head (the
--        caller compares: a stream read from a trimmed position answers with what is left).
local after, most, bytes_max = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local revision, oldest, _, epoch = opened()
if not revision then return {} end

local entries, bytes = {}, 0
local reply = {head(revision, oldest, epoch, now_ms()), entries}
if after + 1 < oldest then return reply end
local from = format('(%d', after)
while #entries < most and bytes < bytes_max do
  local found = call('XRANGE', LOG, from, '+', 'COUNT', math.min(16, most - #entries))
  if #found == 0 then break end
  for _, item in ipairs(found) do
    entries[#entries + 1] = item
    for i = 2, #item[2], 2 do bytes = bytes + #item[2][i] end
    if bytes >= bytes_max then break end
  end
  from = '(' .. found[#found][1]
end
return reply
