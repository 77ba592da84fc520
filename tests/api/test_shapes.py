"""The typed structures against botocore's models: the current one (JSON), and the last one of the query protocol."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import botocore
import pytest
from msgspec import Struct

from batonq.api.sqs import errors, protocol_query
from batonq.api.sqs.operations.table import OPERATIONS
from batonq.api.sqs.shapes import AttributeValue

LEGACY = Path(botocore.__file__).parents[4] / "legacy-botocore" / "botocore"


def load_model(package: Path) -> dict[str, Any]:
    for suffix in ("json", "json.gz"):
        path = package / "data" / "sqs" / "2012-11-05" / f"service-2.{suffix}"
        if path.exists():
            if suffix == "json":
                model: dict[str, Any] = json.loads(path.read_text())
                return model
            import gzip

            zipped: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
            return zipped
    raise FileNotFoundError(package)


@pytest.fixture(scope="module")
def model() -> dict[str, Any]:
    return load_model(Path(botocore.__file__).parent)


@pytest.fixture(scope="module")
def legacy_model() -> dict[str, Any]:
    return load_model(LEGACY)


def fields(shape: type[Struct]) -> dict[str, Any]:
    hints = get_type_hints(shape)
    found = {}
    for name, on_wire in zip(shape.__struct_fields__, shape.__struct_encode_fields__, strict=True):
        if name != on_wire:  # the protocol's own, see SendMessageInput
            continue
        options = [option for option in get_args(hints[name]) if option is not type(None)] or [hints[name]]
        found[name] = options[0]
    return found


def assert_same(shape: type[Struct], described: str, model: dict[str, Any], where: str) -> None:
    members = model["shapes"][described]["members"]
    assert set(fields(shape)) == set(members), where
    for name, hint in fields(shape).items():
        assert_type(hint, members[name]["shape"], model, f"{where}.{name}")


def assert_type(hint: Any, described: str, model: dict[str, Any], where: str) -> None:
    shape = model["shapes"][described]
    kind = shape["type"]
    if kind == "structure":
        assert_same(hint, described, model, where)
    elif kind == "list":
        assert get_origin(hint) is list, where
        assert_type(get_args(hint)[0], shape["member"]["shape"], model, where)
    elif kind == "map":
        assert get_origin(hint) is dict, where
        assert_type(get_args(hint)[1], shape["value"]["shape"], model, where)
    else:
        assert hint is {"string": str, "integer": int, "long": int, "boolean": bool, "blob": bytes}[kind], where


def test_every_operation_is_there(model: dict[str, Any]) -> None:
    assert len(OPERATIONS) == 23
    assert set(OPERATIONS) == set(model["operations"])


@pytest.mark.parametrize("name", OPERATIONS)
def test_structures_have_the_members_of_the_model(name: str, model: dict[str, Any]) -> None:
    operation = model["operations"][name]
    assert_same(OPERATIONS[name].input, operation["input"]["shape"], model, name)
    if "output" in operation:
        assert_same(OPERATIONS[name].output, operation["output"]["shape"], model, name)
    else:
        assert OPERATIONS[name].output.__struct_fields__ == ()


def test_query_names_are_those_of_the_legacy_model(legacy_model: dict[str, Any]) -> None:
    checked = 0
    for name, operation in legacy_model["operations"].items():
        described = [operation["input"]["shape"]] + ([operation["output"]["shape"]] if "output" in operation else [])
        for shape in described:
            checked += assert_query_names(shape, name, legacy_model)
    assert checked > 40


def assert_query_names(described: str, operation: str, model: dict[str, Any]) -> int:
    """The names of lists and maps below a structure; returns how many were compared."""
    checked = 0
    for member, reference in model["shapes"][described].get("members", {}).items():
        shape = model["shapes"][reference["shape"]]
        if shape["type"] == "list":
            assert protocol_query.list_name(member, operation) == shape["member"]["locationName"]
            checked += 1 + assert_query_names(shape["member"]["shape"], operation, model)
        elif shape["type"] == "map":
            entry = reference.get("locationName") or shape["locationName"]
            names = (entry, shape["key"]["locationName"], shape["value"]["locationName"])
            assert protocol_query.MAPS[member] == names
            checked += 1 + assert_query_names(shape["value"]["shape"], operation, model)
    return checked


def test_errors_are_those_of_the_models(model: dict[str, Any], legacy_model: dict[str, Any]) -> None:
    kinds = {kind.type: kind for kind in vars(errors).values() if isinstance(kind, errors.Kind)}
    # The first is deprecated, the second is about missing TLS, and the third no longer comes from SQS.
    never = {"InvalidIdFormat", "InvalidSecurity", "MessageNotInflight"}
    named = {name for name, shape in model["shapes"].items() if shape.get("exception") and not name.startswith("Kms")}
    assert named - never <= kinds.keys()
    for name in kinds.keys() & legacy_model["shapes"].keys():
        described = legacy_model["shapes"][name].get("error", {"code": name, "httpStatusCode": 400})
        assert (kinds[name].code, kinds[name].status) == (described["code"], described["httpStatusCode"]), name
        assert kinds[name].fault == "Sender"


def test_attribute_values_can_be_read_from_either_protocol() -> None:
    assert list(fields(AttributeValue)) == [
        "DataType",
        "StringValue",
        "BinaryValue",
        "StringListValues",
        "BinaryListValues",
    ]
