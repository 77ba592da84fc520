"""GET /v1/status and /v1/cluster: the whole server, its nodes, and the owners of its shards."""

from __future__ import annotations

from msgspec import UNSET

from batonq import __version__
from batonq.api.rest import status_shapes as shapes
from batonq.api.rest.queues import query
from batonq.api.rest.service import Answer, Call
from batonq.node.alarms.verdict import judge
from batonq.node.monitoring.overview import Overview
from batonq.node.monitoring.sampler import NO_RATES


async def get_status(call: Call) -> Answer:
    call.require_operator(False)
    query(call, ())
    monitor = call.broker.monitor
    overview = await monitor.overview()
    status = status_of(overview, await monitor.connections())
    status.node = monitor.everywhere.name
    status.profile = "development" if call.broker.dev else "secured"
    status.read_only = monitor.settings.read_only
    return Answer(200, status)


def status_of(overview: Overview, connections: int) -> shapes.Status:
    verdict = judge(overview)
    queues = overview.queues
    oldest = max(queues, key=overview.age_ms, default=None)
    oldest_ms = overview.age_ms(oldest) if oldest is not None else 0
    processes = [node.process for node in overview.nodes]
    disks = [(process.disk_free_bytes, process.disk_total_bytes) for process in processes if process.disk_total_bytes]
    free, total = min(disks, default=(0, 0))
    counters = [queue.counters for queue in queues]
    letters = [queue.counters for queue in queues if queue.dead_letters]
    rates = NO_RATES
    for queue in queues:
        if queue.rates != NO_RATES:
            rates = rates.plus(queue.rates)
    return shapes.Status(
        version=__version__,
        node="",
        profile="development",
        read_only=False,
        started_at_ms=overview.started_ms,
        at_ms=overview.at_ms,
        verdict=shapes.Verdict(
            level=verdict.level,  # type: ignore[arg-type]  # one of Level
            sentence=verdict.sentence,
            problems=[
                shapes.VerdictProblem(
                    level=problem.level,  # type: ignore[arg-type]
                    text=problem.text,
                    queue=problem.queue or UNSET,
                    account=problem.account or UNSET,
                    alarm=problem.alarm or UNSET,
                )
                for problem in verdict.problems
            ],
        ),
        queues=len(queues),
        visible=sum(each.visible for each in counters),
        in_flight=sum(each.in_flight for each in counters),
        delayed=sum(each.delayed for each in counters),
        owed=sum(each.owed for each in counters),
        dead=sum(each.dead for each in counters),
        dead_letters=sum(each.visible + each.in_flight + each.delayed for each in letters),
        bytes=sum(each.bytes for each in counters),
        oldest_age_seconds=oldest_ms / 1000,
        oldest_visible_age_seconds=max(map(overview.visible_age_ms, queues), default=0) / 1000,
        oldest_queue=oldest.name if oldest is not None and oldest_ms else UNSET,
        sent_per_second=round(rates.sent, 3),
        received_per_second=round(rates.received, 3),
        acked_per_second=round(rates.acked, 3),
        retried_per_second=round(rates.retried, 3),
        dead_lettered_per_second=round(rates.dead_lettered, 3),
        connections=connections,
        waiting_receives=sum(queue.waiters for queue in queues),
        shards=[
            shapes.StatusShard(
                number=shard.number,
                state=shard.state,
                why=shard.why,
                epoch=shard.epoch,
                owner=shard.owner,
                log_bytes=shard.log_bytes,
                room=shard.room,
                failures=shard.failures,
            )
            for shard in overview.shards
        ],
        nodes=[shapes.StatusNode(name=node.name, problem=node.problem or UNSET) for node in overview.nodes],
        disk=shapes.Disk(
            free_bytes=free, total_bytes=total, used_bytes=sum(shard.log_bytes for shard in overview.shards)
        ),
        memory=shapes.Memory(resident_bytes=sum(process.resident_bytes for process in processes)),
        cpu_seconds=round(sum(process.cpu_seconds for process in processes), 3),
        alarms=shapes.AlarmCounts(
            active=len(overview.alarms),
            unacknowledged=sum(not alarm.acknowledged_ms for alarm in overview.alarms),
        ),
    )


async def get_cluster(call: Call) -> Answer:
    call.require_operator(False)
    query(call, ())
    view = await call.broker.monitor.cluster()
    nodes = [
        shapes.ClusterNode(
            name=node.reading.name,
            state=node.state,  # type: ignore[arg-type]  # one of up, draining, silent
            version=node.reading.version,
            started_at_ms=node.reading.started_ms,
            at_ms=node.reading.at_ms,
            shards=node.shards,
            resident_bytes=node.reading.process.resident_bytes,
            disk_free_bytes=node.reading.process.disk_free_bytes,
            disk_total_bytes=node.reading.process.disk_total_bytes,
            cpu_seconds=round(node.reading.process.cpu_seconds, 3),
            url=node.url or UNSET,
            clock_offset_ms=UNSET if node.clock_offset_ms is None else node.clock_offset_ms,
            problem=node.reading.problem or UNSET,
        )
        for node in view.nodes
    ]
    shards = [
        shapes.ClusterShard(
            number=shard.reading.number,
            state=shard.reading.state,
            owner=shard.reading.owner,
            epoch=shard.reading.epoch,
            log_bytes=shard.reading.log_bytes,
            room=shard.reading.room,
            why=shard.reading.why,
            followers=[shapes.ShardFollower(node=name, lag_frames=frames) for name, frames in shard.followers],
            since_at_ms=shard.since_ms or UNSET,
        )
        for shard in view.shards
    ]
    moves = [
        shapes.ShardMove(
            at_ms=move.at_ms, shard=move.shard, to=move.target, reason=move.reason, source=move.source or UNSET
        )
        for move in view.moves
    ]
    return Answer(
        200,
        shapes.Cluster(
            clustered=view.clustered,
            expected=view.expected,
            at_ms=call.broker.now_ms(),
            catalog_owner=view.catalog_owner,
            nodes=nodes,
            shards=shards,
            moves=moves,
        ),
    )
