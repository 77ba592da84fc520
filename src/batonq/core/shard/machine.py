"""A shard: the delivery state machine, put together from its parts.

A command is decided against the state, writes its records into the open frame, applies them at once, and returns the
outcome. The host releases the outcome when the frame is committed. Time is an argument, in milliseconds. What is due by
then is recorded before any decision (expiry.py).

The parts, from the bottom up:

- state/: what is kept. All parts share journal.py (open frame, time, sequences) and messages.py.
- effects/: what records do to messages, on the owner and in replay.
- moves/: how messages leave their queue and arrive in another.
- expiry.py: leases, delays and retentions that end.
- commands/: what the shard is asked to do.
- views.py: reading without a change.
- recovery/: replay, snapshots, truncation.
"""

from __future__ import annotations

from batonq.core.limits import DEFAULT_LIMITS, ShardLimits
from batonq.core.shard.commands.channels import ChannelCommands
from batonq.core.shard.commands.jobs import JobCommands
from batonq.core.shard.commands.new_messages import NewMessages
from batonq.core.shard.commands.numbered_sends import NumberedSends
from batonq.core.shard.commands.operator import OperatorCommands
from batonq.core.shard.commands.publish import Publishing
from batonq.core.shard.commands.queues import QueueCommands
from batonq.core.shard.commands.readers import ReaderCommands
from batonq.core.shard.commands.receipts import ReceiptCommands
from batonq.core.shard.commands.receive import ReceiveCommands
from batonq.core.shard.commands.remembered_requests import RememberedRequests
from batonq.core.shard.commands.schedules import ScheduleCommands
from batonq.core.shard.commands.send import SendCommands
from batonq.core.shard.effects.message_records import MessageRecords
from batonq.core.shard.effects.message_runs import MessageRuns
from batonq.core.shard.expiry import Expiry
from batonq.core.shard.moves.arrivals import Arrivals
from batonq.core.shard.moves.fanout import FanOut
from batonq.core.shard.moves.returns import Returns
from batonq.core.shard.moves.transfers import Transfers
from batonq.core.shard.recovery.columnar_replay import ColumnarReplay
from batonq.core.shard.recovery.replay import Replay
from batonq.core.shard.recovery.snapshot import Persistence
from batonq.core.shard.recovery.truncation import Truncation
from batonq.core.shard.state.attempts import Attempts
from batonq.core.shard.state.columns import Columns
from batonq.core.shard.state.deduplication import Deduplication
from batonq.core.shard.state.job_book import JobBook
from batonq.core.shard.state.journal import Journal
from batonq.core.shard.state.messages import Messages
from batonq.core.shard.state.queue_search import QueueSearch
from batonq.core.shard.state.schedule_book import ScheduleBook
from batonq.core.shard.state.timers import Timers
from batonq.core.shard.validate import Validation
from batonq.core.shard.views import Views


class Shard:
    # The parts that do several requests or records at once. Tests compare them with parts that go one by one.
    new_messages_class: type[NewMessages] = NewMessages
    send_commands_class: type[SendCommands] = SendCommands
    receive_commands_class: type[ReceiveCommands] = ReceiveCommands
    receipt_commands_class: type[ReceiptCommands] = ReceiptCommands
    columnar_replay_class: type[ColumnarReplay] = ColumnarReplay

    def __init__(self, number: int, limits: ShardLimits = DEFAULT_LIMITS) -> None:
        self.number = number
        self.journal = journal = Journal(number, limits)
        self.columns = columns = Columns()
        self.timers = Timers(columns)
        self.attempts = Attempts(journal)
        self.dedup = Deduplication(journal, columns)
        self.messages = messages = Messages(journal, columns, self.timers, self.attempts, self.dedup)
        self.jobs = jobs = JobBook(journal)
        self.schedules = schedules = ScheduleBook(journal)
        self.records = records = MessageRecords(messages, jobs)
        self.runs = runs = MessageRuns(messages)
        self.arrivals = arrivals = Arrivals(messages, jobs)
        self.transfers = transfers = Transfers(messages, arrivals, jobs)
        self.fanout = fanout = FanOut(messages, records, transfers)
        self.returns = returns = Returns(messages, records, transfers, fanout)
        self.expiry = expiry = Expiry(messages, returns)
        self.search = search = QueueSearch(messages)
        self.new_messages = self.new_messages_class(messages, runs, arrivals)
        publishing = Publishing(messages, expiry, runs, records, arrivals, fanout, self.new_messages)
        self.numbered = numbered = NumberedSends(messages, self.new_messages)
        self.requests = requests = RememberedRequests(messages, numbered)
        sends = self.send_commands_class(messages, expiry, self.new_messages, numbered, requests)
        receives = self.receive_commands_class(messages, expiry, records, runs, returns)
        receipts = self.receipt_commands_class(messages, expiry, records, runs, returns)
        queue_commands = QueueCommands(messages, expiry, schedules, fanout)
        channel_commands = ChannelCommands(messages, expiry, arrivals, transfers)
        operator = OperatorCommands(messages, expiry, search, records, returns, arrivals, transfers, jobs)
        self.job_commands = job_commands = JobCommands(messages, expiry, search, arrivals, transfers, jobs, operator)
        self.reader_commands = readers = ReaderCommands(messages, expiry)
        schedule_commands = ScheduleCommands(messages, expiry, self.new_messages, schedules)
        views = Views(messages, transfers, search, schedules)
        persistence = Persistence(messages, arrivals, transfers, jobs, numbered, requests, schedules)
        truncation = Truncation(messages, persistence)
        columnar = self.columnar_replay_class(messages, runs, numbered, requests)
        replay = Replay(
            messages, records, columnar, arrivals, transfers, numbered, requests, jobs, readers, schedules, truncation
        )

        # commands
        self.send = sends.send
        self.receive = receives.receive
        self.receive_at = receives.receive_at
        self.delete = receipts.delete
        self.change_visibility = receipts.change_visibility
        self.give_back = receipts.give_back
        self.nack = receipts.nack
        self.delete_message = operator.delete_message
        self.edit_message = operator.edit_message
        self.retry_message = operator.retry_message
        self.take_ownership = queue_commands.take_ownership
        self.set_policy = queue_commands.set_policy
        self.set_subscription = publishing.set_subscription
        self.close_queue = queue_commands.close_queue
        self.purge = queue_commands.purge
        self.settle = channel_commands.settle
        self.check_arrivals = channel_commands.check_arrivals
        self.arrive = channel_commands.arrive
        self.start_job = job_commands.start_job
        self.cancel_job = job_commands.cancel_job
        self.pause_job = job_commands.pause_job
        self.resume_job = job_commands.resume_job
        self.fail_job = job_commands.fail_job
        self.step_jobs = job_commands.step_jobs
        self.choose = job_commands.choose
        self.create_schedule = schedule_commands.create_schedule
        self.change_schedule = schedule_commands.change_schedule
        self.delete_schedule = schedule_commands.delete_schedule
        self.fire = schedule_commands.fire
        self.schedule_waits = schedule_commands.wait
        self.schedule_moves_to = schedule_commands.moves_to
        self.begin_move = schedule_commands.begin_move
        self.adopt_schedule = schedule_commands.adopt_schedule
        self.begin_create_reader = readers.begin_create
        self.create_reader = readers.create_reader
        self.set_reader = readers.set_reader
        self.delete_reader = readers.delete_reader
        self.join_reader = readers.join
        self.leave_reader = readers.leave
        self.begin_seek = readers.begin_seek
        self.end_seek = readers.end_seek
        self.begin_fetch = readers.begin_fetch
        self.commit_reader = readers.commit_reader
        self.fail_reader = readers.fail_reader
        self.replayed = job_commands.replayed
        self.begin = expiry.begin
        self.pass_time = expiry.pass_time
        self.advance = expiry.advance
        self.next_due = expiry.next_due
        self.forget_producers_after = numbered.forget_after

        # the log, snapshots and truncation
        self.frame = journal.frame
        self.begin_frame = journal.frame.begin
        self.seal = journal.frame.seal
        self.apply_frame = replay.apply_frame
        self.dump = persistence.dump
        self.picture = persistence.picture
        self.save = persistence.save
        self.load = persistence.load
        self.to_carry = truncation.to_carry
        self.carry = truncation.carry
        self.write_base = truncation.write_base
        self.validate = Validation(messages, transfers, jobs, numbered, requests, schedules).validate

        # reading
        self.queues = messages.queues
        self.queue_state = messages.queue_state
        self.topics = messages.topics.states
        self.subscriptions = messages.topics.subscriptions
        self.filled_queues = messages.filled_queues
        self.closing = messages.closing
        self.live_slots = messages.live_slots
        self.woken = messages.woken
        self.paced = messages.paced
        self.alarms = transfers.alarms
        self.standing = receipts.standing
        self.seek = search.seek
        self.stands = search.stands
        self.unsettled = transfers.unsettled
        self.outgoing = transfers.outgoing
        self.incoming = arrivals.incoming
        self.pending_entries = transfers.pending_entries
        self.owed_lineage = transfers.owed_lineage
        self.place_of = transfers.place_of
        self.redriver = jobs.redriver
        self.job_rate = job_commands.job_rate
        self.to_examine = job_commands.to_examine
        self.has = views.has
        self.place = views.place
        self.view = views.view
        self.views = views.views
        self.peek = views.peek
        self.hint = views.hint
        self.counters = views.counters
        self.exact_counters = views.exact_counters
        self.oldest_sent = views.oldest_sent
        self.oldest_visible = views.oldest_visible
        self.blocked_groups = views.blocked_groups
        self.busiest_groups = views.busiest_groups
        self.is_paced = views.is_paced
        self.oldest = views.oldest
        self.counted_groups = views.counted_groups
        self.group_waiting = views.group_waiting
        self.higher_priority = views.higher_priority
        self.latencies = messages.latencies
        self.latencies_of = messages.latencies.find
        self.departing = views.departing
        self.failure_of = views.failure_of
        self.failures_of = views.failures_of
        self.holds_moved = views.holds_moved
        self.is_used = views.is_used
        self.last_record = views.last_record
        self.retained_of = views.retained_of
        self.reader = readers.reader
        self.readers = readers.readers
        self.reader_assignment = readers.assignment
        self.retained_front = messages.retained_front
        self.leased_slots = views.leased_slots
        self.lease_at = views.lease_at
        self.newest = views.newest
        self.next_in_queue = views.next_in_queue
        self.numbers_from = views.numbers_from
        self.queue_name = views.queue_name
        self.sent_at = views.sent_at
        self.sequence_at = views.sequence_at
        self.state_at = views.state_at
        self.was_edited_by = views.was_edited_by
        self.needed_payloads = messages.stored.needed

    @property
    def epoch(self) -> int:
        return self.journal.epoch

    @property
    def format(self) -> int:
        """The version of the log format that this shard's frames need."""
        return self.journal.format

    @property
    def before_base(self) -> int:
        """The first retained frame, while recovery has not read the Base that belongs to it; otherwise 0."""
        return self.journal.before_base

    @before_base.setter
    def before_base(self, first_frame: int) -> None:
        self.journal.before_base = first_frame

    @property
    def next_sequence(self) -> int:
        return self.journal.next_sequence

    @property
    def last_time_ms(self) -> int:
        return self.journal.last_time_ms
