"""Processes that simulations run in."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

PROCESSES = 2


@pytest.fixture(scope="session")
def pool() -> Iterator[ProcessPoolExecutor]:
    # Started anew rather than forked: a simulation must not depend on what the tests before it have left behind.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, mp_context=context) as executor:
        yield executor
