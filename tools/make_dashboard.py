"""Write the Grafana dashboard, deploy/grafana/baton.json: `make_dashboard.py [--check]`.

With --check nothing is written, and the exit code is 1 if the file is out of date.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

TARGET = Path(__file__).resolve().parent.parent / "deploy" / "grafana" / "baton.json"
WIDTH = 24
HERE = 'job=~"$job"'  # which servers
QUEUE = f'{HERE},queue=~"$queue"'
EVERY = "$__rate_interval"
DEAD_LETTERS = (
    f'sum by (account, queue) (baton_queue_messages{{{HERE},state="visible"}}) and on (account, queue) '
    f"max by (account, queue) (baton_queue_is_dead_letter_queue{{{HERE}}}) == 1"
)


class Query(NamedTuple):
    expression: str
    legend: str = ""


class Panel(NamedTuple):
    title: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    description: str = ""
    red_above: float | None = None  # a threshold, for stats
    stacked: bool = False


class Row(NamedTuple):
    title: str
    panels: tuple[Panel, ...]


def quantiles(metric: str, labels: str, by: str = "") -> tuple[Query, ...]:
    """The median, the 95th and the 99th percentile of a histogram."""
    return tuple(
        Query(
            f"histogram_quantile({share}, sum by (le{by}) (rate({metric}_bucket{{{labels}}}[{EVERY}])))",
            f"{name} {{{{{by.strip(', ')}}}}}" if by else name,
        )
        for share, name in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
    )


def rate(metric: str, labels: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}{{{labels}}}[{EVERY}]))"


ROWS = (
    Row(
        "Overview",
        (
            Panel(
                "Messages waiting",
                (Query(f'sum(baton_messages{{{HERE},state="visible"}})'),),
                kind="stat",
                width=4,
                height=4,
                description="Messages that can be received now, in all queues.",
            ),
            Panel(
                "In flight",
                (Query(f'sum(baton_messages{{{HERE},state="in_flight"}})'),),
                kind="stat",
                width=4,
                height=4,
            ),
            Panel(
                "Oldest waiting message",
                (Query(f"max(baton_oldest_visible_seconds{{{HERE}}})"),),
                unit="s",
                kind="stat",
                width=4,
                height=4,
                red_above=3600,
            ),
            Panel(
                "Dead letters",
                (Query(f"sum({DEAD_LETTERS})"),),
                kind="stat",
                width=4,
                height=4,
                red_above=1,
                description="Messages that wait in dead-letter queues.",
            ),
            Panel(
                "Active alarms",
                (Query(f"sum(baton_alarms{{{HERE}}})"),),
                kind="stat",
                width=4,
                height=4,
                red_above=1,
            ),
            Panel(
                "Queues unavailable",
                (Query(f"max(baton_queues_unavailable{{{HERE}}})"),),
                kind="stat",
                width=4,
                height=4,
                red_above=1,
                description="Queues with a shard that no node serves.",
            ),
            Panel(
                "Messages per second",
                (Query(rate("baton_messages_total", HERE, "event"), "{{event}}"),),
                "ops",
                width=12,
            ),
            Panel(
                "Messages by state",
                (Query(f"sum by (state) (baton_messages{{{HERE}}})", "{{state}}"),),
                width=12,
                stacked=True,
            ),
        ),
    ),
    Row(
        "Queues",
        (
            Panel(
                "Waiting messages, ten deepest queues",
                (
                    Query(
                        f'topk(10, sum by (account, queue) (baton_queue_messages{{{QUEUE},state="visible"}}))',
                        "{{queue}}",
                    ),
                ),
            ),
            Panel(
                "Oldest waiting message, ten oldest",
                (
                    Query(
                        f"topk(10, max by (account, queue) (baton_queue_oldest_visible_seconds{{{QUEUE}}}))",
                        "{{queue}}",
                    ),
                ),
                "s",
            ),
            Panel(
                "Time to drain at the current rate, ten longest",
                (
                    Query(
                        f'topk(10, sum by (account, queue) (baton_queue_messages{{{QUEUE},state="visible"}}) / '
                        f"(sum by (account, queue) (baton_queue_drain_per_second{{{QUEUE}}}) > 0))",
                        "{{queue}}",
                    ),
                ),
                "s",
                description="Waiting messages divided by the messages deleted per second.",
            ),
            Panel("Sent", (Query(rate("baton_queue_sent_total", QUEUE, "queue"), "{{queue}}"),), "ops"),
            Panel("Received", (Query(rate("baton_queue_received_total", QUEUE, "queue"), "{{queue}}"),), "ops"),
            Panel("Deleted", (Query(rate("baton_queue_deleted_total", QUEUE, "queue"), "{{queue}}"),), "ops"),
            Panel(
                "Failed attempts",
                (
                    Query(rate("baton_queue_returned_total", QUEUE, "queue"), "{{queue}} returned"),
                    Query(rate("baton_queue_expired_leases_total", QUEUE, "queue"), "{{queue}} lease expired"),
                ),
                "ops",
                description="Leases that ended without a delete. Expired leases are among the returned ones.",
            ),
            Panel(
                "Waiting receives",
                (Query(f"sum by (queue) (baton_queue_waiters{{{QUEUE}}})", "{{queue}}"),),
                description="Long polls: a queue with messages and without any has no consumer.",
            ),
            Panel(
                "Blocked message groups",
                (Query(f"sum by (queue) (baton_queue_blocked_groups{{{QUEUE}}})", "{{queue}}"),),
                description="FIFO queues: groups whose first message is in flight or delayed.",
            ),
        ),
    ),
    Row(
        "Latency",
        (
            Panel("Time in the queue", quantiles("baton_queue_wait_seconds", QUEUE, ", queue"), "s"),
            Panel("Handling", quantiles("baton_queue_handling_seconds", QUEUE, ", queue"), "s"),
            Panel("Send to delete", quantiles("baton_queue_end_to_end_seconds", QUEUE, ", queue"), "s"),
            Panel("SQS requests, p99", (quantiles("baton_sqs_request_seconds", HERE, ", operation")[2],), "s"),
            Panel("REST requests, p99", (quantiles("baton_rest_request_seconds", HERE, ", operation")[2],), "s"),
            Panel("Commit of a frame", quantiles("baton_commit_duration_seconds", HERE), "s"),
        ),
    ),
    Row(
        "Dead letters",
        (
            Panel(
                "Dead letters by queue",
                (Query(DEAD_LETTERS, "{{queue}}"),),
            ),
            Panel(
                "Dead-lettered, by source",
                (Query(rate("baton_queue_dead_lettered_total", QUEUE, "queue"), "{{queue}}"),),
                "ops",
            ),
            Panel(
                "Expired messages",
                (Query(rate("baton_queue_expired_messages_total", QUEUE, "queue"), "{{queue}}"),),
                "ops",
                description="Messages that were lost because nobody received them in time.",
            ),
            Panel(
                "Redrive jobs",
                (Query(f"sum by (queue, progress) (baton_job_messages{{{HERE}}})", "{{queue}} {{progress}}"),),
                width=12,
            ),
            Panel(
                "Receives per message, p99",
                (quantiles("baton_queue_receive_count", QUEUE, ", queue")[2],),
                width=12,
            ),
        ),
    ),
    Row(
        "Topics, readers and schedules",
        (
            Panel(
                "Published, and copies",
                (
                    Query(rate("baton_topic_published_total", HERE, "topic"), "{{topic}} published"),
                    Query(rate("baton_topic_copies_total", HERE, "topic"), "{{topic}} copies"),
                ),
                "ops",
            ),
            Panel(
                "Waiting copies",
                (Query(f"sum by (topic) (baton_topic_waiting_copies{{{HERE}}})", "{{topic}}"),),
                description="Copies whose queue is full, paused or out of reach.",
            ),
            Panel(
                "Copies refused and dropped",
                (
                    Query(rate("baton_topic_refused_total", HERE, "topic"), "{{topic}} refused"),
                    Query(rate("baton_topic_dropped_total", HERE, "topic"), "{{topic}} dropped"),
                ),
                "ops",
            ),
            Panel(
                "Lag of reader groups",
                (Query(f"max by (queue, group) (baton_reader_lag_seconds{{{QUEUE}}})", "{{queue}} {{group}}"),),
                "s",
            ),
            Panel(
                "Messages that reader groups have not read",
                (Query(f"sum by (queue, group) (baton_reader_lag_messages{{{QUEUE}}})", "{{queue}} {{group}}"),),
            ),
            Panel(
                "Firings of schedules",
                (
                    Query(rate("baton_schedule_firings_total", QUEUE, "queue"), "{{queue}}"),
                    Query(rate("baton_schedule_late_firings_total", QUEUE, "queue"), "{{queue}} late"),
                ),
                "ops",
            ),
            Panel(
                "Schedules by state",
                (Query(f"sum by (state) (baton_schedules{{{QUEUE}}})", "{{state}}"),),
                width=12,
                description="A schedule that waits is due and cannot fire, for example because its queue is full.",
            ),
            Panel(
                "Paused queues",
                (Query(f"max by (queue, what) (baton_queue_paused{{{QUEUE}}})", "{{queue}} {{what}}"),),
                width=12,
            ),
        ),
    ),
    Row(
        "Server and cluster",
        (
            Panel(
                "CPU",
                (Query(rate("process_cpu_seconds_total", HERE, "instance"), "{{instance}}"),),
                "percentunit",
                width=6,
            ),
            Panel(
                "Memory",
                (Query(f"sum by (instance) (process_resident_memory_bytes{{{HERE}}})", "{{instance}}"),),
                "bytes",
                width=6,
            ),
            Panel(
                "Free disk space",
                (Query(f"min by (instance) (baton_disk_free_bytes{{{HERE}}})", "{{instance}}"),),
                "bytes",
                width=6,
            ),
            Panel("Event loop lag", quantiles("baton_event_loop_lag_seconds", HERE, ", instance")[2:], "s", width=6),
            Panel(
                "Connections",
                (Query(f"sum by (instance) (baton_http_connections{{{HERE}}})", "{{instance}}"),),
                width=6,
            ),
            Panel(
                "HTTP responses by status",
                (Query(rate("baton_http_responses_total", HERE, "status"), "{{status}}"),),
                "ops",
                width=6,
            ),
            Panel(
                "Limits in use",
                (
                    Query(
                        f"max by (limit) (baton_limit_used{{{HERE}}} / baton_limit{{{HERE}}})",
                        "{{limit}}",
                    ),
                ),
                "percentunit",
                width=6,
            ),
            Panel(
                "Log per shard",
                (Query(f"sum by (shard) (baton_shard_log_bytes{{{HERE}}})", "shard {{shard}}"),),
                "bytes",
                width=6,
            ),
            Panel("Shards served", (Query(f"sum by (instance) (baton_shard_up{{{HERE}}})", "{{instance}}"),), width=6),
            Panel(
                "Ownership changes",
                (
                    Query(
                        f"sum by (instance) (increase(baton_ownership_changes_total{{{HERE}}}[{EVERY}]))",
                        "{{instance}}",
                    ),
                ),
                width=6,
            ),
            Panel(
                "Follower lag",
                (
                    Query(
                        f"max by (instance, shard) (baton_follower_lag_seconds{{{HERE}}})",
                        "{{instance}} shard {{shard}}",
                    ),
                ),
                "s",
                width=6,
            ),
            Panel("Live nodes", (Query(f"min(baton_cluster_nodes{{{HERE}}})", "nodes"),), width=6),
        ),
    ),
    Row(
        "Workers",
        (
            Panel(
                "Handled and failed",
                (
                    Query(rate("baton_worker_acked_total", 'job=~"$worker_job"', "task"), "{{task}} done"),
                    Query(rate("baton_worker_retried_total", 'job=~"$worker_job"', "task"), "{{task}} retried"),
                    Query(
                        rate("baton_worker_dead_lettered_total", 'job=~"$worker_job"', "task"), "{{task}} dead-lettered"
                    ),
                ),
                "ops",
            ),
            Panel(
                "Handler time", quantiles("baton_worker_handler_duration_seconds", 'job=~"$worker_job"', ", task"), "s"
            ),
            Panel(
                "Busy slots",
                (Query('sum by (task) (baton_worker_running{job=~"$worker_job"})', "{{task}}"),),
            ),
        ),
    ),
)


def _variable(name: str, query: str, label: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "sort": 1,
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.red_above is not None:
        steps.append({"color": "red", "value": panel.red_above})
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.kind == "timeseries":
        stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
        defaults["custom"] = {"fillOpacity": 30 if panel.stacked else 5, "showPoints": "never", "stacking": stacking}
    made: dict[str, Any] = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "datasource": source,
        "gridPos": {"h": panel.height, "w": panel.width, "x": x, "y": y},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": source,
                "expr": query.expression,
                "legendFormat": query.legend or "__auto",
            }
            for at, query in enumerate(panel.queries)
        ],
    }
    if panel.description:
        made["description"] = panel.description
    if panel.kind == "stat":
        made["options"] = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "area"}
    else:
        made["options"] = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
    return made


def dashboard() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    y = 0
    for row in ROWS:
        position = {"h": 1, "w": WIDTH, "x": 0, "y": y}
        panels.append({"id": len(panels) + 1, "type": "row", "title": row.title, "gridPos": position, "panels": []})
        y += 1
        x = height = 0
        for panel in row.panels:
            if x + panel.width > WIDTH:
                x, y, height = 0, y + height, 0
            panels.append(_panel(panel, len(panels) + 1, x, y))
            x += panel.width
            height = max(height, panel.height)
        y += height
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    variables = [
        source,
        _variable("job", "label_values(baton_info, job)", "Server"),
        _variable("queue", 'label_values(baton_queue_messages{job=~"$job"}, queue)', "Queue"),
        _variable("worker_job", "label_values(baton_worker_running, job)", "Workers"),
    ]
    return {
        "uid": "baton",
        "title": "Baton",
        "description": "Queues, latency, dead letters and nodes of a Baton server. See docs/how-to/monitor-it.md.",
        "tags": ["baton", "queue"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": variables},
        "panels": panels,
    }


def text() -> str:
    return json.dumps(dashboard(), indent=2) + "\n"


def main(arguments: list[str]) -> int:
    changed = not TARGET.exists() or TARGET.read_text() != text()
    if changed and "--check" not in arguments:
        TARGET.write_text(text())
    return 1 if changed and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
