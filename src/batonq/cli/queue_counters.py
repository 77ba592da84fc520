"""`baton queue counters QUEUE`: exact counters at log positions, and where every message has gone."""

from __future__ import annotations

from typing import Any

from batonq.cli.output import note, print_table

COLUMNS = ("SHARD", "POSITION", "SENT", "ARRIVED", "DELETED", "EXPIRED", "MOVED", "PRESENT", "DELIVERED")
FIELDS = ("sent", "arrived", "deleted", "expired", "moved", "present", "delivered")


def show_counters(found: dict[str, Any]) -> None:
    """One row per shard, and one for the queue if it has several shards."""
    rows = [_row(str(part["shard"]), part["position"].partition(":")[2], part["counters"]) for part in found["shards"]]
    if len(rows) > 1:
        rows.append(_row("all", "", found["counters"]))
    print_table(COLUMNS, rows, right=COLUMNS)
    missing = found["counters"]["unaccounted"]
    if missing:
        note(f"sent + arrived differs from deleted + expired + moved + present by {missing:,}. Please report this.")


def _row(shard: str, position: str, counters: dict[str, int]) -> tuple[str, ...]:
    return (shard, position, *(f"{counters[field]:,}" for field in FIELDS))
