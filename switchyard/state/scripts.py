"""The Lua that Redis runs, where several gateways would otherwise race: limits of API keys. The rules are `memory.Ledger`'s.

A key's use is one hash: `r:SECOND` and `t:SECOND` hold requests and tokens of a second, `R` and `T` their sums, `o` the
oldest second that is still counted. Running requests are a sorted set, each with the time at which it counts as lost: a
gateway renews them, so those of a gateway that died are free again after `LEASE_S`. Time is Redis's own.
"""

from __future__ import annotations

from hashlib import sha1

LEASE_S = 60
USE_TTL_S = 180  # longer than the window; then a silent key is forgotten

_BEGIN = """
local use, running = KEYS[1], KEYS[2]
local time = redis.call('TIME')
local now = tonumber(time[1])
local now_ms = now * 1000 + math.floor(tonumber(time[2]) / 1000)
local function number(field) return tonumber(redis.call('HGET', use, field) or 0) end
local function evict()
  local oldest = tonumber(redis.call('HGET', use, 'o') or now)
  local first = oldest
  while oldest < now - 60 do
    for sum, kind in pairs({R = 'r:', T = 't:'}) do
      local held = number(kind .. oldest)
      if held ~= 0 then
        redis.call('HINCRBY', use, sum, -held)
        redis.call('HDEL', use, kind .. oldest)
      end
    end
    oldest = oldest + 1
  end
  if oldest ~= first or redis.call('HEXISTS', use, 'o') == 0 then redis.call('HSET', use, 'o', oldest) end
  redis.call('EXPIRE', use, 180)
  return oldest
end
local function add(sum, kind, amount, second)
  redis.call('HINCRBY', use, sum, amount)
  redis.call('HINCRBY', use, kind .. second, amount)
end
"""

CLAIM = (
    _BEGIN
    + """
local requests, tokens, at_once = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local wanted, id, lease_ms = tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6])
local oldest = evict()
local function room_in(sum, kind, amount, limit)
  local left = number(sum)
  for second = oldest, now do
    local held = number(kind .. second)
    left = left - held
    if held ~= 0 and left + amount <= limit then return math.max(1, second + 61 - now) end
  end
  return 1
end
if tokens >= 0 and wanted > tokens then return {'tokens_per_minute', -1} end
if at_once >= 0 then
  redis.call('ZREMRANGEBYSCORE', running, '-inf', now_ms)
  if redis.call('ZCARD', running) >= at_once then return {'concurrent_requests', 1} end
end
if requests >= 0 and number('R') >= requests then return {'requests_per_minute', room_in('R', 'r:', 1, requests)} end
if tokens >= 0 and number('T') + wanted > tokens then
  return {'tokens_per_minute', room_in('T', 't:', wanted, tokens)}
end
add('R', 'r:', 1, now)
if wanted > 0 then add('T', 't:', wanted, now) end
if at_once >= 0 then
  redis.call('ZADD', running, now_ms + lease_ms, id)
  redis.call('PEXPIRE', running, lease_ms)
end
return {'', now}
"""
)
"""KEYS: use, running. ARGV: requests, tokens, at once (-1: no limit), tokens wanted, id, lease in ms. Gives the exceeded
limit and the seconds to wait (-1: for ever), or an empty text and the second in which it was granted."""

SETTLE = (
    _BEGIN
    + """
local id, more, second = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
redis.call('ZREM', running, id)
if more == 0 then return 0 end
evict()
if more > 0 then
  add('T', 't:', more, now)
else
  local less = math.min(-more, number('t:' .. second))
  if less > 0 then add('T', 't:', -less, second) end
end
return 1
"""
)
"""KEYS: use, running. ARGV: id, tokens used more than claimed (or less, below 0), the second of the grant."""

RENEW = """
local running, lease_ms = KEYS[1], tonumber(ARGV[1])
local time = redis.call('TIME')
local until_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) + lease_ms
for i = 2, #ARGV do redis.call('ZADD', running, until_ms, ARGV[i]) end
redis.call('PEXPIRE', running, lease_ms)
return #ARGV - 1
"""
"""KEYS: running. ARGV: lease in ms, ids that are still running."""

ALL = (CLAIM, SETTLE, RENEW)


def digest(script: str) -> str:
    """The name by which Redis calls a script that it was given."""
    return sha1(script.encode(), usedforsecurity=False).hexdigest()
