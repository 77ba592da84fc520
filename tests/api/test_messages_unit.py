"""Digests, characters, ids, batches and message attributes, each on its own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonq.api.sqs import digests, validate
from batonq.api.sqs.errors import SqsError
from batonq.api.sqs.message_attributes import AttributeSelection, attributes_size, encode_message_attributes
from batonq.api.sqs.shapes import AttributeValue, DeleteMessageBatchEntry
from batonq.core.payload import decode_attributes, encode_attributes


def encoded(values: dict[str, AttributeValue]) -> bytes:
    return encode_message_attributes(values)[0]


def test_digests_as_recorded_from_the_service() -> None:
    """Digests that SQS itself gave for these attributes."""
    assert digests.hex_digest(b"Test Message") == "d1d4180b7e411c4be86b00fb2ee103eb"
    assert (
        digests.hex_digest(encoded({"Hello": AttributeValue("String", "World")})) == "7db7fb1ba7f41366a8ea5eb18220b26d"
    )
    number = {"UserId": AttributeValue("Number.bigint", "1234567890123456789012")}
    assert digests.hex_digest(encoded(number)) == "797ab158d73dcb5242dedc4412c8e855"
    two = {"data2": AttributeValue("Number", "2"), "data1": AttributeValue("Number", "1")}
    assert digests.hex_digest(encoded(two)) == "b53b5acf24e7fd9567705bd8027b1c76"
    binary = b"traceparent\x1e00-774062d6c37081a5a0b9b5b88e30627c-2d2482211f6489da-01"
    assert digests.hex_digest(encoded({"attr1": AttributeValue("Binary", None, binary)})) == (
        "8cbe4db156db8a94db8b801b7addb984"
    )
    assert digests.trace_digest("some-trace-id") == "fdce4f2818803f2f73becc09a54792c0"


STAR_WARS = {
    "General": AttributeValue("String", "Kenobi"),
    "Hello": AttributeValue("String", "There"),
    "Help.Me": AttributeValue("String", "Me"),
}


@pytest.mark.parametrize(
    ("wanted", "names", "md5"),
    [
        (["All"], ["General", "Hello", "Help.Me"], "4c360f3fdafd970e05fae2f149d997f5"),
        ([".*"], ["General", "Hello", "Help.Me"], "4c360f3fdafd970e05fae2f149d997f5"),
        (["*"], ["General", "Hello", "Help.Me"], "4c360f3fdafd970e05fae2f149d997f5"),
        (["Hello", "General"], ["General", "Hello"], "fca026605781cb4126a1e9044df24232"),
        (["Hello", "Foo"], ["Hello"], "a311262e065454b75da111d535b8dacd"),
        (["Hel.*"], ["Hello", "Help.Me"], "83fee93c1bcd8b9a5a923ffacdc636c7"),
        (["Foo", "AWS.foo", "H*", ""], [], None),
    ],
)
def test_attributes_are_chosen_by_name_and_prefix(wanted: list[str], names: list[str], md5: str | None) -> None:
    values, chosen = AttributeSelection(wanted).choose(encoded(STAR_WARS))
    assert [*values] == names and values == {name: STAR_WARS[name] for name in names}
    if md5 is not None:
        assert digests.hex_digest(chosen) == md5


def allowed_by_the_book(char: str) -> bool:
    code = ord(char)
    return code in (9, 10, 13) or 0x20 <= code <= 0xD7FF or 0xE000 <= code <= 0xFFFD or 0x10000 <= code <= 0x10FFFF


def test_every_character() -> None:
    for code in (*range(0x300), 0xD7FF, 0xE000, 0xFFFC, 0xFFFD, 0xFFFE, 0xFFFF, 0x10000, 0x1FFFE, 0x10FFFF):
        text = f"a{chr(code)}b"
        assert validate.allowed(text.encode()) == allowed_by_the_book(chr(code)), hex(code)


@given(st.text())
def test_characters(text: str) -> None:
    assert validate.allowed(text.encode()) == all(map(allowed_by_the_book, text))


@pytest.mark.parametrize("text", ["\x00", "a\x0b", "\ufffe", "\ud800"])
def test_characters_that_no_message_has(text: str) -> None:
    with pytest.raises(SqsError, match="Invalid characters found") as caught:
        validate.encoded(text)
    assert caught.value.kind.code == "InvalidMessageContents"


@pytest.mark.parametrize("value", ["a", "A-z_0.9", "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", "x" * 128])
def test_identifiers(value: str) -> None:
    validate.check_identifier(value, "MessageGroupId")


@pytest.mark.parametrize("value", ["", "x" * 129, "a b", "é", "a\n", "\x7f"])
def test_identifiers_that_are_none(value: str) -> None:
    with pytest.raises(SqsError, match="MessageGroupId can only include alphanumeric and punctuation") as caught:
        validate.check_identifier(value, "MessageGroupId")
    assert caught.value.kind.code == "InvalidParameterValue"


def batch(*ids: str | None) -> list[DeleteMessageBatchEntry]:
    return [DeleteMessageBatchEntry(entry_id, "receipt") for entry_id in ids]


BAD_ENTRY_ID = (
    "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
    "It can be at most 80 letters long."
)


@pytest.mark.parametrize(
    ("entries", "code", "message"),
    [
        (None, "EmptyBatchRequest", "There should be at least one DeleteMessageBatchRequestEntry in the request."),
        (batch(), "EmptyBatchRequest", "There should be at least one DeleteMessageBatchRequestEntry in the request."),
        (
            batch(*map(str, range(11))),
            "TooManyEntriesInBatchRequest",
            "Maximum number of entries per request are 10. You have sent 11.",
        ),
        (batch("a", "b", "a"), "BatchEntryIdsNotDistinct", "Id a repeated."),
    ]
    + [
        (
            batch("ok", bad),
            "InvalidBatchEntryId",
            BAD_ENTRY_ID,
        )
        for bad in ("", "a:b", "x" * 81, "é", "a\n")
    ],
)
def test_batches_that_are_refused_whole(entries: Any, code: str, message: str) -> None:
    with pytest.raises(SqsError) as caught:
        validate.check_batch(entries, "DeleteMessageBatch")
    assert caught.value.kind.type == code
    assert caught.value.kind.code == f"AWS.SimpleQueueService.{code}"
    assert caught.value.message == message


def test_a_batch_without_an_id() -> None:
    with pytest.raises(SqsError, match=r"parameter DeleteMessageBatchRequestEntry\.2\.Id\.") as caught:
        validate.check_batch(batch("a", None), "DeleteMessageBatch")
    assert caught.value.kind.code == "MissingParameter"


def test_a_batch_of_ten() -> None:
    ids = [*map(str, range(9)), "x" * 80]
    assert validate.check_batch(batch(*ids), "DeleteMessageBatch") == ids


TEXT = AttributeValue("String", "x")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({f"a{n}": TEXT for n in range(11)}, "Number of message attributes [11] exceeds the allowed maximum [10]."),
        ({"": TEXT}, "The request must contain non-empty message (user) attribute names."),
        ({"x" * 257: TEXT}, "Message (user) attribute name must be shorter than 256 bytes."),
        ({"AWS.x": TEXT}, "You can't use message attribute names beginning with 'AWS.' or 'Amazon.'."),
        ({"amazon.x": TEXT}, "You can't use message attribute names beginning with 'AWS.' or 'Amazon.'."),
        ({".x": TEXT}, "Invalid message (user) attribute name '.x'."),
        ({"x.": TEXT}, "Invalid message (user) attribute name 'x.'."),
        ({"a..b": TEXT}, "Invalid message (user) attribute name 'a..b'."),
        ({"a b": TEXT}, "Invalid message (user) attribute name 'a b'."),
        ({"é!": TEXT}, "Invalid message (user) attribute name 'é!'."),
        ({"\x08": TEXT}, "Invalid characters found."),
        ({"a": AttributeValue(None, "x")}, "must contain a non-empty message attribute type."),
        ({"a": AttributeValue("Text", "x")}, "The type of message (user) attribute 'a' is invalid. You must use only"),
        ({"a": AttributeValue("Stringy", "x")}, "supported type prefixes: Binary, Number, String."),
        (
            {"a": AttributeValue("String." + "y" * 250, "x")},
            "Message (user) attribute type must be shorter than 256 bytes.",
        ),
        (
            {"a": AttributeValue("String", "")},
            "Message (user) attribute 'a' must contain a non-empty value of type 'String'.",
        ),
        (
            {"a": AttributeValue("String", None)},
            "Message (user) attribute 'a' must contain a non-empty value of type 'String'.",
        ),
        (
            {"a": AttributeValue("Binary", "x")},
            "Message (user) attribute 'a' must contain a non-empty value of type 'Binary'.",
        ),
        (
            {"a": AttributeValue("Number", "ten")},
            "Can't cast the value of message (user) attribute 'a' to a number.",
        ),
        ({"a": AttributeValue("Number.int", "1_0")}, "Can't cast the value of message (user) attribute 'a'"),
        ({"a": AttributeValue("String", "x", b"y")}, "has a StringValue and a BinaryValue"),
    ],
)
def test_attributes_that_are_refused(values: dict[str, AttributeValue], message: str) -> None:
    with pytest.raises(SqsError) as caught:
        encode_message_attributes(values)
    assert caught.value.kind.code == "InvalidParameterValue"
    assert message in caught.value.message


def test_attribute_lists_are_not_supported() -> None:
    with pytest.raises(SqsError, match="list values in SendMessage operation are not supported") as caught:
        encode_message_attributes({"a": AttributeValue("String", StringListValues=["x"])})
    assert caught.value.kind.code == "AWS.SimpleQueueService.UnsupportedOperation"


def test_attributes_with_characters_that_no_message_has() -> None:
    with pytest.raises(SqsError) as caught:
        encode_message_attributes({"a": AttributeValue("String", "\x00")})
    assert caught.value.kind.code == "InvalidParameterValue"


def test_attribute_names_have_letters_of_any_language() -> None:
    stored = encoded({"naïve.größe_1-ж": AttributeValue("String", "x")})
    (row,) = decode_attributes(stored)
    assert row.name == "naïve.größe_1-ж"
    assert attributes_size(stored, 1) == len("naïve.größe_1-ж".encode()) + len("String") + 1
    with pytest.raises(SqsError, match="must be shorter than 256 bytes"):
        encode_message_attributes({"é" * 129: AttributeValue("String", "x")})


def test_attributes_that_are_taken() -> None:
    stored = encoded(
        {
            "a-b_c.D9": AttributeValue("String.label", "\u00e9"),
            "n": AttributeValue("Number", "-1.5e+3"),
            "m": AttributeValue("Number.int", "007"),
            "b": AttributeValue("Binary.png", None, b"\x00"),
            "x" * 256: TEXT,
        }
    )
    rows = decode_attributes(stored)
    assert rows == [
        ("a-b_c.D9", "String.label", "\u00e9".encode(), False),
        ("b", "Binary.png", b"\x00", True),
        ("m", "Number.int", b"007", False),
        ("n", "Number", b"-1.5e+3", False),
        ("x" * 256, "String", b"x", False),
    ]
    assert encode_attributes(rows) == stored
    sizes = [len(row.name.encode()) + len(row.data_type) + len(row.value) for row in rows]
    assert attributes_size(stored, len(rows)) == sum(sizes)


def test_an_attribute_is_checked_again_when_its_name_and_type_are_known() -> None:
    encoded({"known": AttributeValue("Number", "1")})
    for value, message in (
        (AttributeValue("Number", "one"), "Can't cast"),
        (AttributeValue("Number", ""), "non-empty value"),
        (AttributeValue("Number", "1", b"1"), "has a StringValue and a BinaryValue"),
        (AttributeValue("Number", "1", StringListValues=["1"]), "are not supported"),
        (AttributeValue("Numb", "1"), "is invalid"),
    ):
        with pytest.raises(SqsError, match=message):
            encoded({"known": value})


def test_the_trace_header() -> None:
    assert validate.trace_header({"AWSTraceHeader": AttributeValue("String", "Root=1-2")}) == "Root=1-2"
    for values, message in (
        ({"Other": TEXT}, "Message system attribute name 'Other' is invalid."),
        ({"AWSTraceHeader": AttributeValue("Number", "1")}, "must be String"),
        ({"AWSTraceHeader": AttributeValue("String", "")}, "non-empty value"),
        ({"AWSTraceHeader": AttributeValue("String", "x" * 3000)}, "at most 2048 bytes"),
    ):
        with pytest.raises(SqsError, match=message):
            validate.trace_header(values)
