"""Queue attributes: what may be set, what comes back, and the policy that a shard gets."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonq.attribute_formats.arns import QueueName, parse_queue_arn, queue_arn
from batonq.attribute_formats.redrive_policy import allows_source, check_redrive_allow_policy, parse_redrive_policy
from batonq.core.catalog import attributes
from batonq.core.catalog.attributes import (
    JSON_CHECKS,
    effective,
    first_difference,
    readings,
    to_policy,
    validate,
)
from batonq.core.catalog.entries import QueueEntry
from batonq.core.catalog.names import check_queue_name, is_text
from batonq.core.commands import Counters
from batonq.core.policy import FIELD_NAMES, QueuePolicy
from batonq.errors import InvalidAttributeName, InvalidAttributeValue, InvalidInput
from batonq.queue_attributes import ATTRIBUTES, Access, ValueKind, in_words_of_rest, in_words_of_sqs, mention

ACCOUNT = "000000000000"
DLQ_ARN = queue_arn(ACCOUNT, "dead")


def redrive_policy(count: object = 3, arn: object = DLQ_ARN) -> str:
    return json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": count})


def invalid(name: str) -> str:
    """The beginning of the error for an invalid value, as a regular expression."""
    return re.escape(f"Invalid value for the parameter {mention(name)}.")


def create(**changes: str) -> dict[str, str]:
    """Attribute names have dots; keyword arguments write them as underscores."""
    named = {name.replace("_", "."): value for name, value in changes.items()}
    return validate(named, fifo=named.get("FifoQueue") == "true", creating=True)


# --- the table --------------------------------------------------------------------------------


def test_every_row_is_documented_and_its_default_is_valid() -> None:
    for row in ATTRIBUTES.values():
        assert row.doc.endswith("."), row.name
        if row.default is not None:
            assert row.access is Access.SETTABLE
            assert validate({row.name: row.default}, fifo=True, creating=True)[row.name] == row.default


@pytest.mark.parametrize(
    ("name", "low", "high", "default"),
    [
        ("DelaySeconds", 0, 900, "0"),
        ("MaximumMessageSize", 1024, 1_048_576, "1048576"),
        ("MessageRetentionPeriod", 60, 1_209_600, "345600"),
        ("ReceiveMessageWaitTimeSeconds", 0, 20, "0"),
        ("VisibilityTimeout", 0, 43_200, "30"),
        ("KmsDataKeyReusePeriodSeconds", 60, 86_400, None),
        ("Baton.DeduplicationWindow", 1, 1_209_600, "300"),
        ("Baton.PriorityAgeingSeconds", 0, 86_400, "300"),
        ("Baton.MaxReceives", 0, 1000, "0"),
        ("Baton.MaximumInFlight", 1, 120_000, "120000"),
    ],
)
def test_ranges_and_defaults(name: str, low: int, high: int, default: str | None) -> None:
    assert effective({}).get(name) == default
    for good in (low, high):
        assert validate({name: str(good)}, fifo=False, creating=True) == {name: str(good)}
    for bad in (str(low - 1), str(high + 1), "x", "1.5", " 1", "+1", "1e3", "٣", "1" * 5000):
        with pytest.raises(InvalidAttributeValue, match=f"^{invalid(name)} Reason: Must be"):
            validate({name: bad}, fifo=False, creating=True)


@pytest.mark.parametrize("name", [row.name for row in ATTRIBUTES.values() if row.access is Access.READ_ONLY])
def test_what_is_read_only_cannot_be_set(name: str) -> None:
    for creating in (True, False):
        with pytest.raises(InvalidAttributeName, match=f"^Unknown Attribute {name}\\.$"):
            validate({name: "1"}, fifo=False, creating=creating)


def test_an_unknown_attribute_is_named() -> None:
    with pytest.raises(InvalidAttributeName, match=r"^Unknown Attribute NoSuch\.$"):
        validate({"NoSuch": "1"}, fifo=False, creating=True)
    with pytest.raises(InvalidAttributeName, match=r"^Unknown Attribute Baton\.NoSuch\.$"):
        attributes.check_name("Baton.NoSuch")


# --- FIFO -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("ContentBasedDeduplication", "true", "Unknown Attribute ContentBasedDeduplication."),
        (
            "DeduplicationScope",
            "messageGroup",
            "You can specify the «DeduplicationScope» only when «FifoQueue» is set to true.",
        ),
        (
            "FifoThroughputLimit",
            "perQueue",
            "You can specify the «FifoThroughputLimit» only when «FifoQueue» is set to true.",
        ),
    ],
)
def test_fifo_attributes_need_a_fifo_queue(name: str, value: str, text: str) -> None:
    for creating in (True, False):
        with pytest.raises(InvalidAttributeName) as refusal:
            validate({name: value}, fifo=False, creating=creating)
        assert refusal.value.message == text
    assert validate({name: value}, fifo=True, creating=True) == {name: value}


def test_the_queue_type_is_said_at_creation_and_never_changed() -> None:
    assert create(FifoQueue="true") == {"FifoQueue": "true"}
    with pytest.raises(InvalidAttributeName, match=r"^Unknown Attribute FifoQueue\.$"):
        create(FifoQueue="false")
    assert validate({"FifoQueue": "true"}, fifo=True, creating=False, current={"FifoQueue": "true"}) == {
        "FifoQueue": "true"
    }
    for value in ("false", "", "x"):
        with pytest.raises(InvalidAttributeValue, match="Modifying queue type is not supported"):
            validate({"FifoQueue": value}, fifo=True, creating=False)
    for value in ("true", "false"):
        with pytest.raises(InvalidAttributeName, match=r"^Unknown Attribute FifoQueue\.$"):
            validate({"FifoQueue": value}, fifo=False, creating=False)


def test_throughput_per_group_needs_dedup_per_group() -> None:
    fifo = {"FifoQueue": "true", "FifoThroughputLimit": "perMessageGroupId"}
    with pytest.raises(InvalidAttributeValue, match="only when the value for DeduplicationScope is messageGroup"):
        validate(fifo, fifo=True, creating=True)
    both = validate({**fifo, "DeduplicationScope": "messageGroup"}, fifo=True, creating=True)
    with pytest.raises(InvalidAttributeValue, match="only when the value for DeduplicationScope is messageGroup"):
        validate({"DeduplicationScope": "queue"}, fifo=True, creating=False, current=both)


def test_all_of_a_fifo_queue_has_the_fifo_attributes() -> None:
    fifo = effective({"FifoQueue": "true"})
    assert fifo["ContentBasedDeduplication"] == "false"
    assert fifo["DeduplicationScope"] == "queue"
    assert fifo["FifoThroughputLimit"] == "perQueue"
    assert not {"FifoQueue", "ContentBasedDeduplication", "DeduplicationScope"} & effective({}).keys()


# --- names in errors --------------------------------------------------------------------------


def test_each_interface_names_an_attribute_in_its_own_words() -> None:
    with pytest.raises(InvalidAttributeValue) as refusal:
        create(FifoQueue="true", Baton_Spread="2")
    text = refusal.value.message
    assert in_words_of_sqs(text).startswith("Baton.Spread above 1 needs DeduplicationScope messageGroup on a FIFO")
    assert in_words_of_rest(text).startswith("spread above 1 needs deduplication.perGroup on a FIFO queue.")
    class_one = f"{mention('Baton.Durability', '1')} is not available"
    assert in_words_of_sqs(class_one) == "Baton.Durability 1 is not available"
    assert in_words_of_rest(class_one) == "durability 1 is not available"
    only_in_sqs = mention("RedriveAllowPolicy")
    assert in_words_of_sqs(only_in_sqs) == in_words_of_rest(only_in_sqs) == "RedriveAllowPolicy"


@given(st.text())
def test_braces_that_name_no_attribute_stay_as_they_are(text: str) -> None:
    for given_text in (text, f"{{{text}}}", '{"a": {"b": {c}}}'):
        if not any(mention(name) in given_text for name in ATTRIBUTES):
            assert in_words_of_sqs(given_text) == in_words_of_rest(given_text) == given_text


# --- booleans, words, removal -----------------------------------------------------------------


def test_booleans_and_words() -> None:
    assert create(Baton_StrictReceipts="True") == {"Baton.StrictReceipts": "true"}
    assert create(Baton_DeadLetterOn="failure") == {"Baton.DeadLetterOn": "failure"}
    assert create(Baton_AlarmSeverity="page-1") == {"Baton.AlarmSeverity": "page-1"}
    for name, value in (
        ("Baton.StrictReceipts", "yes"),
        ("Baton.DeadLetterOn", "Failure"),
        ("Baton.DeduplicationScope", "queue"),
        ("Baton.AlarmSeverity", "two words"),
        ("Baton.AlarmSeverity", "x" * 65),
        ("SqsManagedSseEnabled", "1"),
    ):
        with pytest.raises(InvalidAttributeValue, match=f"^{invalid(name)}"):
            validate({name: value}, fifo=False, creating=True)


def test_an_empty_value_removes_what_can_be_unset() -> None:
    current = {"Policy": "x", "RedrivePolicy": "y", "Baton.MaxReceives": "3", "DelaySeconds": "5"}
    gone = {"Policy": "", "RedrivePolicy": "", "Baton.MaxReceives": ""}
    assert validate(gone, fifo=False, creating=False, current=current) == {"DelaySeconds": "5"}
    with pytest.raises(InvalidAttributeValue):
        validate({"DelaySeconds": ""}, fifo=False, creating=False, current=current)


def test_numbers_are_kept_in_one_form() -> None:
    assert create(DelaySeconds="007") == {"DelaySeconds": "7"}


@pytest.mark.parametrize("bad", ["a\x00b", "\ud800", "\ufffe", "x" * 8193, "é" * 5000])
def test_texts_that_a_protocol_could_not_carry_are_refused(bad: str) -> None:
    assert not is_text(bad, 8192)
    with pytest.raises(InvalidAttributeValue, match=f"^{invalid('KmsMasterKeyId')}"):
        create(KmsMasterKeyId=bad)


# --- encryption -------------------------------------------------------------------------------


def change(current: dict[str, str], **changes: str) -> dict[str, str]:
    return validate(changes, fifo=False, creating=False, current=current)


def encryption(current: dict[str, str]) -> dict[str, str]:
    kept = ("KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds", "SqsManagedSseEnabled")
    return {name: value for name, value in effective(current).items() if name in kept}


def test_both_kinds_of_encryption_are_refused() -> None:
    with pytest.raises(InvalidAttributeName, match="one type of server-side encryption"):
        create(KmsMasterKeyId="k", SqsManagedSseEnabled="true")


def test_the_kind_of_encryption_asked_for_last_holds() -> None:
    assert encryption({}) == {"SqsManagedSseEnabled": "true"}
    keyed = create(KmsMasterKeyId="k")
    assert encryption(keyed) == {
        "KmsMasterKeyId": "k",
        "KmsDataKeyReusePeriodSeconds": "300",
        "SqsManagedSseEnabled": "false",
    }
    tuned = change(keyed, KmsDataKeyReusePeriodSeconds="60")
    assert encryption(tuned)["KmsDataKeyReusePeriodSeconds"] == "60"
    assert encryption(change(tuned, SqsManagedSseEnabled="true")) == {"SqsManagedSseEnabled": "true"}
    assert encryption(change(tuned, KmsMasterKeyId="")) == {"SqsManagedSseEnabled": "false"}
    assert encryption(change(tuned, KmsMasterKeyId="other"))["KmsDataKeyReusePeriodSeconds"] == "60"
    taken_back = change(tuned, KmsMasterKeyId="", KmsDataKeyReusePeriodSeconds="300")
    assert encryption(taken_back) == {"SqsManagedSseEnabled": "false"}


def test_a_reuse_period_without_a_key_is_kept() -> None:
    alone = create(KmsDataKeyReusePeriodSeconds="60")
    assert encryption(alone) == {"KmsDataKeyReusePeriodSeconds": "60", "SqsManagedSseEnabled": "true"}


# --- redrive ----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 1000, "1", "1000"])
def test_redrive_policy_is_taken_apart(count: object) -> None:
    parsed = parse_redrive_policy(redrive_policy(count))
    assert parsed == (QueueName(ACCOUNT, "dead"), int(str(count)))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not a valid JSON map"),
        ("[1]", "not a valid JSON map"),
        ("[" * 100_000, "not a valid JSON map"),
        ("{", "not a valid JSON map"),
        ("{}", "does not contain mandatory attribute: maxReceiveCount."),
        ('{"maxReceiveCount": 1}', "does not contain mandatory attribute: deadLetterTargetArn."),
        (redrive_policy(0), "Invalid value for maxReceiveCount: 0, valid values are from 1 to 1000 both inclusive."),
        (redrive_policy(1001), "Invalid value for maxReceiveCount: 1001"),
        (redrive_policy("x"), "Invalid value for maxReceiveCount: x"),
        (redrive_policy(True), "Invalid value for maxReceiveCount: True"),
        (redrive_policy(1.5), "Invalid value for maxReceiveCount: 1.5"),
        (redrive_policy(None), "Invalid value for maxReceiveCount: None"),
        (redrive_policy(arn="dead"), "Invalid value for deadLetterTargetArn."),
        (redrive_policy(arn=7), "Invalid value for deadLetterTargetArn."),
        (redrive_policy(arn="arn:aws:sns:r:1:t"), "Only SQS queues are valid resources"),
        (
            json.dumps({"deadLetterTargetArn": DLQ_ARN, "maxReceiveCount": 1, "x": 1}),
            "Only following attributes are supported: [deadLetterTargetArn, maxReceiveCount].",
        ),
    ],
)
def test_redrive_policies_that_are_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        parse_redrive_policy(text)
    assert reason in refusal.value.message


def test_redrive_allow_policy() -> None:
    source = QueueName(ACCOUNT, "work")
    by_queue = json.dumps(
        {"redrivePermission": "byQueue", "sourceQueueArns": [queue_arn(ACCOUNT, "work", "eu-west-1")]}
    )
    for good in ('{"redrivePermission":"allowAll"}', '{"redrivePermission":"denyAll"}', by_queue):
        check_redrive_allow_policy(good)
    assert allows_source("", source)
    assert allows_source('{"redrivePermission":"allowAll"}', source)
    assert not allows_source('{"redrivePermission":"denyAll"}', source)
    assert allows_source(by_queue, source)
    assert not allows_source(by_queue, QueueName(ACCOUNT, "other"))


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "1",
        "{}",
        '{"redrivePermission":"some"}',
        '{"redrivePermission":["allowAll"]}',
        '{"redrivePermission":"allowAll","other":1}',
        '{"redrivePermission":"byQueue"}',
        '{"redrivePermission":"byQueue","sourceQueueArns":[]}',
        '{"redrivePermission":"byQueue","sourceQueueArns":"x"}',
        '{"redrivePermission":"byQueue","sourceQueueArns":[1]}',
        '{"redrivePermission":"byQueue","sourceQueueArns":["arn:x"]}',
        json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": [DLQ_ARN] * 11}),
        json.dumps({"redrivePermission": "allowAll", "sourceQueueArns": [DLQ_ARN]}),
    ],
)
def test_redrive_allow_policies_that_are_refused(bad: str) -> None:
    with pytest.raises(InvalidInput, match="RedriveAllowPolicy"):
        check_redrive_allow_policy(bad)


# --- names ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "A-b_9", "x" * 80])
def test_names_of_standard_queues(name: str) -> None:
    check_queue_name(name, fifo=False)


@pytest.mark.parametrize("name", ["", "x" * 81, "a.b", "a b", "é", "a/b", "q.fifo"])
def test_names_that_a_standard_queue_cannot_have(name: str) -> None:
    with pytest.raises(InvalidInput, match="1 to 80 in length"):
        check_queue_name(name, fifo=False)


def test_names_of_fifo_queues_end_in_fifo() -> None:
    check_queue_name("a.fifo", fifo=True)
    check_queue_name("x" * 75 + ".fifo", fifo=True)
    for name in ("", ".fifo", "a", "a.fifo.fifo", "a.FIFO", "x" * 76 + ".fifo"):
        with pytest.raises(InvalidInput, match=r"must end with \.fifo suffix"):
            check_queue_name(name, fifo=True)


def test_an_arn_names_a_queue_in_any_region() -> None:
    assert parse_queue_arn(queue_arn(ACCOUNT, "q")) == (ACCOUNT, "q")
    assert parse_queue_arn("arn:aws-cn:sqs:eu-west-1:1:q.fifo") == ("1", "q.fifo")
    for bad in (
        "",
        "q",
        "arn:aws:sqs:r:1",
        "arn:aws:sns:r:1:q",
        "arn:aws:sqs:r::q",
        "arn:aws:sqs:r:1:",
        "urn:aws:sqs:r:1:q",
    ):
        assert parse_queue_arn(bad) is None


# --- comparing, reading, making a policy ------------------------------------------------------


def test_create_queue_compares_only_what_was_passed() -> None:
    existing = create(DelaySeconds="5", RedrivePolicy=redrive_policy())
    assert first_difference({}, existing) is None
    assert first_difference({"DelaySeconds": "5", "VisibilityTimeout": "30"}, existing) is None
    assert first_difference({"DelaySeconds": "5", "VisibilityTimeout": "31"}, existing) == "VisibilityTimeout"
    same_meaning = json.dumps(json.loads(redrive_policy()), indent=2, sort_keys=True)
    assert first_difference({"RedrivePolicy": same_meaning}, existing) is None
    assert first_difference({"RedrivePolicy": redrive_policy(4)}, existing) == "RedrivePolicy"
    assert first_difference({"Policy": ""}, existing) is None
    assert first_difference({"Baton.PriorityAgeingSeconds": ""}, existing) is None
    assert first_difference({"Baton.MaxReceives": ""}, create(Baton_MaxReceives="3")) == "Baton.MaxReceives"
    with pytest.raises(InvalidAttributeValue):
        first_difference({"DelaySeconds": "-1"}, existing)


def test_readings_are_attributes_that_cannot_be_set() -> None:
    fields = dict.fromkeys(Counters._fields, 0)
    counters = Counters(**{**fields, "visible": 2, "in_flight": 3, "delayed": 4, "dead": 5, "oldest_sent_ms": 1_000})
    values = readings(counters, now_ms=8_999)
    assert values["ApproximateNumberOfMessages"] == "2"
    assert values["ApproximateNumberOfMessagesNotVisible"] == "3"
    assert values["ApproximateNumberOfMessagesDelayed"] == "4"
    assert values["Baton.DeadMessages"] == "5"
    assert values["Baton.AgeOfOldestMessage"] == "7"
    assert readings(Counters(**fields), now_ms=8_999)["Baton.AgeOfOldestMessage"] == "0"
    given_by_the_queue = {"CreatedTimestamp", "LastModifiedTimestamp", "QueueArn", "Baton.Warnings"}
    read_only = {row.name for row in ATTRIBUTES.values() if row.access is Access.READ_ONLY}
    assert values.keys() == read_only - given_by_the_queue


def policy(attributes: dict[str, str]) -> QueuePolicy:
    return to_policy(
        7, ACCOUNT, "q", 11, attributes, lambda target: (9, 2, "") if target.name == "dead" else (0, 0, "")
    )


def test_a_queue_without_attributes_has_the_default_policy() -> None:
    assert policy({}) == QueuePolicy(queue=7, tenant=ACCOUNT, name="q", version=11)


def test_attributes_reach_the_policy() -> None:
    made = policy(
        create(
            FifoQueue="true",
            DelaySeconds="1",
            VisibilityTimeout="2",
            MessageRetentionPeriod="60",
            DeduplicationScope="messageGroup",
            RedrivePolicy=redrive_policy("4"),
            Baton_StrictReceipts="true",
            Baton_DeadLetterOn="failure",
            Baton_DeduplicationWindow="10",
            Baton_DeduplicationScope="lives",
            Baton_PriorityAgeingSeconds="0",
            Baton_MaxReceives="7",
            Baton_ExpiryToDeadLetter="true",
            Baton_SLASeconds="5",
            Baton_AlarmSeverity="page",
            Baton_MaximumInFlight="6",
            Baton_MaximumMessages="8",
            Baton_MaximumBytes="9",
        )
    )
    assert made == QueuePolicy(
        queue=7,
        tenant=ACCOUNT,
        name="q",
        version=11,
        fifo=True,
        delay_ms=1000,
        visibility_ms=2000,
        retention_ms=60_000,
        dedup_window_ms=10_000,
        dedup_per_group=True,
        dedup_lives=True,
        max_receives=4,  # RedrivePolicy's count is the one that holds
        dead_letter_queue=9,
        dead_letter_shard=2,
        dead_letter_on_failure=True,
        expiry_to_dead_letter=True,
        strict_receipts=True,
        ageing_ms=0,
        in_flight_max=6,
        messages_max=8,
        bytes_max=9,
        sla_seconds=5,
        alarm_severity="page",
    )
    assert policy(create(Baton_MaxReceives="7")).max_receives == 7


@given(st.dictionaries(st.sampled_from(sorted(ATTRIBUTES)) | st.text(max_size=8), st.text(max_size=40), max_size=6))
def test_whatever_is_sent_is_taken_or_refused_properly(changes: dict[str, str]) -> None:
    try:
        result = validate(changes, fifo=True, creating=False, current={"FifoQueue": "true"})
    except InvalidInput:
        return
    assert all(result.values())
    assert validate(result, fifo=True, creating=False, current=result) == result
    assert policy(result).queue == 7
    assert effective(result).items() >= result.items()


def test_every_json_attribute_has_a_check() -> None:
    assert JSON_CHECKS.keys() == {row.name for row in ATTRIBUTES.values() if row.kind is ValueKind.JSON}


def test_every_policy_field_and_counter_that_a_row_names_exists() -> None:
    rows = ATTRIBUTES.values()
    assert {row.policy for row in rows if row.policy} <= set(FIELD_NAMES)
    assert {row.counter for row in rows if row.counter} <= set(Counters._fields)


def test_a_retired_attribute_is_refused_and_dropped_from_an_old_catalog() -> None:
    with pytest.raises(InvalidAttributeName, match=r"^Unknown Attribute Baton\.ShedClass\.$"):
        create(Baton_ShedClass="bulk")
    record = QueueEntry(1, ACCOUNT, "q", {"DelaySeconds": "5"}, {}, 0, 0, (0,), None, 1).record()
    record["attributes"]["Baton.ShedClass"] = "bulk"
    assert QueueEntry.from_record(1, record).attributes == {"DelaySeconds": "5"}
    old = QueuePolicy(7, ACCOUNT, "q").encode().replace(b'"sla_seconds"', b'"shed_class":"bulk","sla_seconds"')
    assert b"shed_class" in old
    assert QueuePolicy.decode(old) == QueuePolicy(7, ACCOUNT, "q")


@pytest.mark.parametrize("name", ["RedrivePolicy", "RedriveAllowPolicy"])
def test_an_empty_map_takes_a_redrive_attribute_back(name: str) -> None:
    current = {name: '{"redrivePermission":"allowAll"}'}
    for value in ("", "{}", " { } "):
        assert validate({name: value}, fifo=False, creating=False, current=current) == {}
