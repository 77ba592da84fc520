"""Claims in Redis: one hash per key, which expires by itself. As durable as that Redis is configured to be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from batonq.errors import InvalidInput
from batonq.idempotency.store import Claim, ClaimState, Place, Store, Turn

if TYPE_CHECKING:
    import redis

# A script runs alone in Redis, so each is one atomic step. An expired hash is gone, which frees the claim of a crashed
# holder.
_CLAIM = """
local row = redis.call('HMGET', KEYS[1], 'done', 'owner', 'result')
if row[1] then return {'done', row[3]} end
if row[2] and row[2] ~= ARGV[1] then return {'busy', redis.call('PTTL', KEYS[1])} end
redis.call('HSET', KEYS[1], 'owner', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {'taken'}
"""
_EXTEND = """
local row = redis.call('HMGET', KEYS[1], 'done', 'owner')
if row[1] or row[2] ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
_COMPLETE = """
local owner = redis.call('HGET', KEYS[1], 'owner')
if owner and owner ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'done', '1')
if ARGV[3] == '1' then redis.call('HSET', KEYS[1], 'result', ARGV[4]) else redis.call('HDEL', KEYS[1], 'result') end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
"""
_RELEASE = """
local row = redis.call('HMGET', KEYS[1], 'done', 'owner')
if row[1] or row[2] ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"""
# The number of an ordered key never expires; the current turn is in a separate key, which does.
_BEGIN_TURN = """
local last = tonumber(redis.call('GET', KEYS[1]) or ARGV[4])
local number = tonumber(ARGV[1])
if number <= last then return {'seen', last} end
if number > last + 1 then return {'gap', last} end
local owner = redis.call('GET', KEYS[2])
if owner and owner ~= ARGV[2] then return {'busy', last, redis.call('PTTL', KEYS[2])} end
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
return {'next', last}
"""
_EXTEND_TURN = """
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[2], ARGV[2])
"""
_END_TURN = """
local owner = redis.call('GET', KEYS[2])
if owner and owner ~= ARGV[2] then return 0 end
local last = redis.call('GET', KEYS[1])
if last and tonumber(last) + 1 ~= tonumber(ARGV[1]) then return 0 end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('DEL', KEYS[2])
return 1
"""
_GIVE_UP_TURN = """
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[2])
"""


class RedisStore(Store):
    """`client` is a URL such as redis://127.0.0.1/0, or a `redis.Redis` that returns bytes (its default)."""

    def __init__(self, client: str | redis.Redis, *, prefix: str = "baton:") -> None:
        try:
            import redis
        except ImportError:
            raise InvalidInput("RedisStore needs redis-py: pip install redis.") from None
        if not isinstance(client, (str, redis.Redis)):
            raise InvalidInput(
                "RedisStore needs a URL or a redis.Redis. Asyncio clients are not supported, because it is used "
                "from threads."
            )
        super().__init__()
        self._owned = isinstance(client, str)
        self._redis: Any = redis.Redis.from_url(client) if isinstance(client, str) else client
        self._prefix = prefix
        self._scripts = {
            text: self._redis.register_script(text)
            for text in (_CLAIM, _EXTEND, _COMPLETE, _RELEASE, _BEGIN_TURN, _EXTEND_TURN, _END_TURN, _GIVE_UP_TURN)
        }

    def close(self) -> None:
        super().close()
        if self._owned:
            self._redis.close()

    def claim(self, key: str, owner: str, lease: float) -> Claim:
        answer = self._run(_CLAIM, key, owner, _ms(lease))
        match _text(answer[0]):
            case "done":
                return Claim(ClaimState.DONE, answer[1])
            case "busy":
                return Claim(ClaimState.BUSY, None, max(0, int(answer[1])) / 1000)
        return Claim(ClaimState.TAKEN)

    def extend(self, key: str, owner: str, lease: float) -> bool:
        return bool(self._run(_EXTEND, key, owner, _ms(lease)))

    def complete(self, key: str, owner: str, ttl: float, result: bytes | None) -> bool:
        return bool(self._run(_COMPLETE, key, owner, _ms(ttl), int(result is not None), result or b""))

    def release(self, key: str, owner: str) -> bool:
        return bool(self._run(_RELEASE, key, owner))

    def forget(self, key: str) -> bool:
        return bool(self._redis.delete(self._claim(key), *self._line(key)))

    def prune(self) -> int:
        return 0

    def begin_turn(self, key: str, sequence: int, owner: str, lease: float, first: int) -> Turn:
        answer = self._run_line(_BEGIN_TURN, key, sequence, owner, _ms(lease), first - 1)
        left = max(0, int(answer[2])) / 1000 if len(answer) > 2 else 0.0
        return Turn(Place(_text(answer[0])), int(answer[1]), left)

    def extend_turn(self, key: str, owner: str, lease: float) -> bool:
        return bool(self._run_line(_EXTEND_TURN, key, owner, _ms(lease)))

    def end_turn(self, key: str, sequence: int, owner: str) -> bool:
        return bool(self._run_line(_END_TURN, key, sequence, owner))

    def give_up_turn(self, key: str, owner: str) -> bool:
        return bool(self._run_line(_GIVE_UP_TURN, key, owner))

    def _run(self, script: str, key: str, *arguments: Any) -> Any:
        return self._scripts[script](keys=[self._claim(key)], args=arguments)

    def _run_line(self, script: str, key: str, *arguments: Any) -> Any:
        return self._scripts[script](keys=self._line(key), args=arguments)

    def _claim(self, key: str) -> str:
        return f"{self._prefix}claim:{key}"

    def _line(self, key: str) -> list[str]:
        # The braces keep both keys in one slot of a Redis cluster.
        return [f"{self._prefix}last:{{{key}}}", f"{self._prefix}turn:{{{key}}}"]


def _ms(seconds: float) -> int:
    return max(1, int(seconds * 1000))


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
