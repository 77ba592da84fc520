"""The sentence at the top of a queue's page: how it is, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batonq.api.ui.formats import duration, number, plural, rate
from batonq.api.ui.view import Level
from batonq.node.alarms.verdict import UNATTENDED_MS


def sentence(queue: Mapping[str, Any], stats: Mapping[str, Any], *, dead_letters: bool = False) -> tuple[str, Level]:
    """`queue` has the settings, `stats` the statistics; `dead_letters`: other queues send their dead letters here."""
    visible, in_flight, delayed = (int(stats.get(name, 0)) for name in ("visible", "inFlight", "delayed"))
    oldest_s = float(stats.get("oldestAgeSeconds", 0))
    total = visible + in_flight + delayed
    level: Level = "ok"
    paused = {"delivery": "paused", "sends": "sends are paused", "both": "paused, and sends are refused"}.get(
        queue.get("paused", ""), ""
    )
    if paused:
        left = "no messages left" if not total else f"{plural(total, 'message')} left"
        return f"{paused[0].upper()}{paused[1:]}; {left}.", "warning"
    if not total:
        return ("No dead letters." if dead_letters else "Empty: no messages wait."), "ok"
    if dead_letters:
        words = plural(total, "dead letter")
        return f"{words}, the oldest arrived {duration(oldest_s)} ago.", "warning"
    parts = [_waiting(visible, in_flight, delayed, oldest_s)]
    sla_s = float(queue.get("slaSeconds", 0))
    if sla_s and oldest_s > sla_s:
        parts[0] = parts[0][0].lower() + parts[0][1:]
        parts.insert(0, f"{duration(oldest_s - sla_s)} behind its SLA of {duration(sla_s)}")
        level = "warning"
    attended = in_flight or stats.get("waitingReceives") or stats.get("receivedPerSecond")
    if visible and not attended and oldest_s * 1000 > UNATTENDED_MS:
        parts.append("nobody receives")
        level = "warning"
    elif visible:
        parts += _trend(visible, stats)
    return "; ".join(parts) + ".", level


def _waiting(visible: int, in_flight: int, delayed: int, oldest_s: float) -> str:
    if visible:
        wait = "waits" if visible == 1 else "wait"
        return f"{plural(visible, 'message')} {wait}, the oldest for {duration(oldest_s)}"
    parts = [f"{number(in_flight)} in flight"] if in_flight else []
    parts += [f"{number(delayed)} delayed"] if delayed else []
    return "No message waits, " + ", ".join(parts)


def _trend(visible: int, stats: Mapping[str, Any]) -> list[str]:
    """Whether the backlog grows or drains, and how long that takes."""
    sent, deleted = stats.get("sentPerSecond"), stats.get("deletedPerSecond")
    if sent is None or deleted is None:
        return []
    if sent > deleted * 1.05 and sent - deleted >= 0.5:
        return [f"growing by {rate(sent - deleted)}"]
    if deleted > sent * 1.05 and deleted - sent >= 0.5 and visible >= 100:
        return [f"empty in about {duration(visible / (deleted - sent))}"]
    return []
