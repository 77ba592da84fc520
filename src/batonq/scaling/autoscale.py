"""A lane's scaling policy as text, for commands and settings: `2:50,per-worker=100,sla=60`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from batonq.errors import InvalidInput
from batonq.scaling.policies import Drain, KeepUp, Lag, Largest, PerWorker, Policy, Sla, Steps
from batonq.scaling.scaler import Pace, Scaler

DEFAULT_PER_WORKER = 100.0
_PACE = {"up": "up_cooldown_s", "window": "down_window_s", "down": "down_cooldown_s", "tolerance": "tolerance"}
_POLICIES = ("per-worker", "steps", "drain", "sla", "lag")
OPTIONS = (*_POLICIES, "rate", *_PACE, "interval")
INTERVAL_S = 5.0
INTERVAL_MIN_S = 0.1


@dataclass(slots=True, frozen=True)
class Autoscale:
    """Minimum and maximum number of workers, a policy and a pace."""

    minimum: int
    maximum: int
    policy: Policy
    pace: Pace
    interval_s: float = INTERVAL_S  # between two readings of the queue

    def scaler(self) -> Scaler:
        return Scaler(self.policy, self.minimum, self.maximum, self.pace)

    @classmethod
    def parse(cls, text: str) -> Autoscale:
        """`MIN:MAX`, then options as `name=value`, separated by commas. Times are in seconds; `rate` is in messages per
        second per worker; steps are `0:5/500:20`. If there are several policies, the largest number applies.
        """
        limits, *words = [word.strip() for word in text.split(",")]
        least, _, most = limits.partition(":")
        if not (least.isascii() and least.isdigit() and most.isascii() and most.isdigit()):
            raise InvalidInput(f"{text!r} must begin with the minimum and maximum number of workers, for example 2:50")
        options: dict[str, str] = {}
        for word in words:
            name, equals, value = word.partition("=")
            if name not in OPTIONS or not equals or not value:
                raise InvalidInput(
                    f"{word!r} is not an option; the options are {', '.join(f'{name}=…' for name in OPTIONS)}"
                )
            if name in options:
                raise InvalidInput(f"{name} is given twice in {text!r}")
            options[name] = value
        interval_s = _number("interval", options.get("interval", str(INTERVAL_S)))
        if interval_s < INTERVAL_MIN_S:
            raise InvalidInput(f"interval={interval_s:g} is too short; the minimum is {INTERVAL_MIN_S} s")
        made = cls(int(least), int(most), policy(options), _pace(options), interval_s)
        made.scaler()  # raises an error if the limits are not valid
        return made


def parse_lane(text: str) -> tuple[str, Autoscale]:
    """`QUEUE=2:50,…`: a lane with its own policy."""
    name, equals, rest = text.partition("=")
    if not name or not equals or ":" in name:
        raise InvalidInput(f"{text!r} is not a lane; use QUEUE=MIN:MAX, for example paid=5:50,per-worker=10")
    return name, Autoscale.parse(rest)


def policy(options: dict[str, str]) -> Policy:
    """The policies of the options, of which the largest number applies; 100 messages per worker by default."""
    rate = _number("rate", options["rate"]) if "rate" in options else None
    found: list[Policy] = []
    if "per-worker" in options:
        found.append(PerWorker(_number("per-worker", options["per-worker"])))
    if "steps" in options:
        found.append(Steps(_steps(options["steps"])))
    if "drain" in options:
        found.append(Drain(_number("drain", options["drain"]), rate))
    if "sla" in options:
        found.append(Sla(_number("sla", options["sla"]), rate))
    if "lag" in options:
        found.append(Lag(_number("lag", options["lag"])))
    if not found:
        found.append(PerWorker(DEFAULT_PER_WORKER))
    if rate is not None:
        found.append(KeepUp(rate))
    return found[0] if len(found) == 1 else Largest(tuple(found))


def _pace(options: dict[str, str]) -> Pace:
    values = {field: _number(name, options[name]) for name, field in _PACE.items() if name in options}
    return replace(Pace(), **values)


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InvalidInput(f"{name}={text} is not a number") from None
    if not 0 <= value < float("inf"):
        raise InvalidInput(f"{name}={text} must be 0 or more")
    return value


def _steps(text: str) -> tuple[tuple[int, int], ...]:
    found = []
    for word in text.split("/"):
        depth, _, workers = word.partition(":")
        if not (depth.isascii() and depth.isdigit() and workers.isascii() and workers.isdigit()):
            raise InvalidInput(
                f"{word!r} is not a step; use a depth and the number of workers from there on, for example 500:20"
            )
        found.append((int(depth), int(workers)))
    return tuple(found)
