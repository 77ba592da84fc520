"""Faults and their times: crashes, disks that fail, fill up or slow down, and clocks that are set."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import Any

from sim.clients import Client, Surroundings
from sim.machine import Machine
from sim.scenario import Faults

PLENTY_BYTES = 1 << 40
DISK_STEPS_MAX = 40
RECEIVES_MAX = 12


class Chaos:
    def __init__(self, machine: Machine, around: Surroundings, random: Random, faults: Faults) -> None:
        self._machine = machine
        self._around = around
        self._random = random
        self._client = Client("chaos", around, random)
        self._faults = faults

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        faults = self._faults
        kinds: list[tuple[float, Callable[[], Awaitable[None]]]] = [
            (faults.crash_s, self._crash),
            (faults.stop_s, self._stop),
            (faults.disk_error_s, self._disk_errors),
            (faults.full_disk_s, self._full_disk),
            (faults.slow_disk_s, self._slow_disk),
            (faults.wall_step_s, self._step_wall),
            (faults.clock_advance_s, self._advance_clock),
            (faults.break_s, self._break_off),
        ]
        return [self._again_and_again(mean_s, act) for mean_s, act in kinds if mean_s]

    def heal(self) -> None:
        """End all faults."""
        machine = self._machine
        machine.fail_rate = 0.0
        machine.loss_rate = 0.0
        machine.slow = 1.0
        machine.crash_in_steps = -1
        machine.crash_at_sync = False
        machine.disk.capacity_bytes = PLENTY_BYTES
        machine.life.receives_left = -1
        machine.life.poll_breaks = False

    async def _again_and_again(self, mean_s: float, act: Callable[[], Awaitable[None]]) -> None:
        while not self._machine.broken:
            await asyncio.sleep(self._random.expovariate(1 / mean_s))
            await act()

    async def _crash(self) -> None:
        """Crash at once, or in the middle of the disk's next steps."""
        choice = self._random.random()
        if choice < 0.4:
            self._machine.crash("at once")
        elif choice < 0.7:
            self._machine.crash_in_steps = self._random.randrange(DISK_STEPS_MAX)
        else:
            self._machine.crash_at_sync = True

    async def _stop(self) -> None:
        await self._machine.stop()

    async def _disk_errors(self) -> None:
        self._machine.fail_rate = self._random.choice((0.01, 0.1, 1.0))
        await asyncio.sleep(self._random.random() * 2)
        self._machine.fail_rate = 0.0

    async def _full_disk(self) -> None:
        disk = self._machine.disk
        used = disk.capacity_bytes - disk.free("/")
        self._machine.disk.capacity_bytes = used + self._random.choice((0, 1_000, 20_000))
        await asyncio.sleep(self._random.random() * 5)
        self._machine.disk.capacity_bytes = PLENTY_BYTES

    async def _slow_disk(self) -> None:
        self._machine.slow = self._random.choice((10.0, 100.0))
        await asyncio.sleep(self._random.random() * 3)
        self._machine.slow = 1.0

    async def _step_wall(self) -> None:
        step_s = self._random.choice((-1.0, 1.0)) * self._random.choice((0.05, 1.0, 10.0))
        self._around.history.say(self._around.loop.time(), "chaos", f"the wall clock is set by {step_s} s")
        self._machine.wall_offset_s += step_s

    async def _advance_clock(self) -> None:
        forward_ms = self._random.choice((100, 5_000, 60_000))
        queue = next(iter(self._around.queues))
        await self._client.steer(
            queue, "advance", lambda broker, _: broker.advance_clock(forward_ms), f"the clock by {forward_ms} ms"
        )

    async def _break_off(self) -> None:
        life = self._machine.life
        if self._random.random() < 0.7:
            life.poll_breaks = True
        else:
            life.receives_left = self._random.randrange(RECEIVES_MAX)
