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
local oldest, requests_sum, tokens_sum
local function read()
  local held = redis.call('HMGET', use, 'o', 'R', 'T')
  oldest, requests_sum, tokens_sum = tonumber(held[1] or now), tonumber(held[2] or 0), tonumber(held[3] or 0)
  if held[1] and oldest >= now - 60 then return end
  while oldest < now - 60 do
    local gone = redis.call('HMGET', use, 'r:' .. oldest, 't:' .. oldest)
    if gone[1] or gone[2] then
      requests_sum = requests_sum - tonumber(gone[1] or 0)
      tokens_sum = tokens_sum - tonumber(gone[2] or 0)
      redis.call('HDEL', use, 'r:' .. oldest, 't:' .. oldest)
    end
    oldest = oldest + 1
  end
  redis.call('HSET', use, 'o', oldest, 'R', requests_sum, 'T', tokens_sum)
  redis.call('EXPIRE', use, 180)
end
local function add(requests, tokens, second)
  local held = redis.call('HMGET', use, 'r:' .. second, 't:' .. second)
  redis.call('HSET', use, 'R', requests_sum + requests, 'T', tokens_sum + tokens,
    'r:' .. second, tonumber(held[1] or 0) + requests, 't:' .. second, tonumber(held[2] or 0) + tokens)
end
"""

CLAIM = (
    _BEGIN
    + """
local requests, tokens, at_once = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local wanted, id, lease_ms = tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6])
local now_ms = now * 1000 + math.floor(tonumber(time[2]) / 1000)
local function room_in(sum, kind, amount, limit)
  for second = oldest, now do
    local held = tonumber(redis.call('HGET', use, kind .. second) or 0)
    sum = sum - held
    if held ~= 0 and sum + amount <= limit then return math.max(1, second + 61 - now) end
  end
  return 1
end
if tokens >= 0 and wanted > tokens then return {'tokens_per_minute', -1} end
if at_once >= 0 then
  redis.call('ZREMRANGEBYSCORE', running, '-inf', now_ms)
  if redis.call('ZCARD', running) >= at_once then return {'concurrent_requests', 1} end
end
if requests >= 0 or tokens >= 0 then
  read()
  if requests >= 0 and requests_sum >= requests then
    return {'requests_per_minute', room_in(requests_sum, 'r:', 1, requests)}
  end
  if tokens >= 0 and tokens_sum + wanted > tokens then
    return {'tokens_per_minute', room_in(tokens_sum, 't:', wanted, tokens)}
  end
  add(1, wanted, now)
end
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
read()
if more > 0 then
  add(0, more, now)
else
  local less = math.min(-more, tonumber(redis.call('HGET', use, 't:' .. second) or 0))
  if less > 0 then add(0, -less, second) end
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

TAKE_DOWN = "return redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] and redis.call('HDEL', KEYS[1], ARGV[1]) or 0"
"""KEYS: a board. ARGV: name of a notice, and its text: another one by that name stays."""

ALL = (CLAIM, SETTLE, RENEW, TAKE_DOWN)


def digest(script: str) -> str:
    """The name by which Redis calls a script that it was given."""
    return sha1(script.encode(), usedforsecurity=False).hexdigest()
