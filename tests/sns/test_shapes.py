"""The structures of the operations, and the codes of the errors, are those of botocore's model."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import botocore.loaders
import botocore.model
import pytest
from msgspec import Struct

from batonq import errors as baton
from batonq.api.sns import errors
from batonq.api.sns.operations import OPERATIONS

MODEL = botocore.model.ServiceModel(botocore.loaders.Loader().load_service_model("sns", "service-2"), "sns")
SCALARS = {str: "string", bool: "boolean", bytes: "blob"}


def check(given: Any, shape: botocore.model.Shape) -> None:
    if get_origin(given) is UnionType:
        [given] = [option for option in get_args(given) if option is not NoneType]
    origin = get_origin(given)
    if origin is list:
        assert shape.type_name == "list"
        check(get_args(given)[0], shape.member)
    elif origin is dict:
        assert shape.type_name == "map"
        check(get_args(given)[1], shape.value)
    elif isinstance(given, type) and issubclass(given, Struct):
        check_members(given, shape)
    else:
        assert SCALARS[given] == shape.type_name


def check_members(given: type[Struct], shape: botocore.model.Shape) -> None:
    hints = get_type_hints(given)
    ours = set(hints) - {"StringListValues", "BinaryListValues"}  # of SQS's attributes
    assert ours == set(shape.members), given
    for name in ours:
        check(hints[name], shape.members[name])


@pytest.mark.parametrize("name", OPERATIONS)
def test_inputs_and_outputs_are_those_of_the_model(name: str) -> None:
    operation, model = OPERATIONS[name], MODEL.operation_model(name)
    check_members(operation.input, model.input_shape)
    if model.output_shape is None:
        assert operation.output is NoneType
    else:
        check_members(operation.output, model.output_shape)
        assert model.output_shape.serialization["resultWrapper"] == f"{name}Result"


def test_every_code_of_the_model_that_is_used_has_its_status() -> None:
    known = {
        shape.metadata["error"]["code"]: shape.metadata["error"]["httpStatusCode"]
        for name in MODEL.shape_names
        if "error" in (shape := MODEL.shape_for(name)).metadata
    }
    made = [
        errors.invalid("x"),
        errors.denied("x"),
        errors.topic_not_found(),
        errors.subscription_not_found(),
        errors.fault("x"),
        errors.of_baton(baton.OverLimit()),
        errors.of_baton(baton.AccessDenied()),
        errors.of_baton(baton.TopicDoesNotExist()),
        errors.of_baton(baton.TopicExists()),
        errors.of_baton(baton.InvalidInput()),
    ]
    for error in made:
        assert known[error.code] == error.status
