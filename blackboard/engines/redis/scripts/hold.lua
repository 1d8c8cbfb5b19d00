-- Makes the commits of a board wait, except for a restore; or ends the wait.
--   KEYS  see prelude.lua
--   ARGV  1 for how many milliseconds; 0 = end the wait
-- Reply: {} when the board must be opened first; else head.
local hold_ms, time_ms = tonumber(ARGV[1]), now_ms()
local revision, oldest, _, epoch = opened()
if not revision then return {} end
if hold_ms > 0 then
  call('HSET', META, 'hold', format('%d', time_ms + hold_ms))
else
  call('HDEL', META, 'hold')
end
return head(revision, oldest, epoch, time_ms)
