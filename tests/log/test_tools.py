"""`baton log inspect | verify | repair`, on logs that a shard has written."""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path

import pytest

from batonq.cli import logrecords
from batonq.cli.main import main
from batonq.core.commands import Claim
from batonq.core.policy import QueuePolicy
from batonq.core.records import Type
from batonq.core.shard.machine import Shard
from batonq.log import frames, layout
from batonq.log.file_log import FileLog, FileLogSettings
from batonq.log.interface import Log
from batonq.log.ownership import LockFileOwnership
from batonq.log.snapshots import SnapshotStore
from tests.support import ask

NOW = 1_700_000_000_000
SETTINGS = FileLogSettings(segment_bytes=8192, free_floor_bytes=0, background=False)


class Server:
    """As much of one as it takes to write logs: a data directory, its ownership and two shards."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.ownership = LockFileOwnership(str(data))
        self.ownership.take("127.0.0.1:9324")
        self.shards = {number: Shard(number) for number in (0, 1)}
        self.logs: dict[int, FileLog] = {}
        for number, shard in self.shards.items():
            self.logs[number] = FileLog.open(
                layout.log_directory(str(data), number),
                shard=number,
                cluster=self.ownership.cluster,
                settings=SETTINGS,
            )
            shard.begin_frame(self.logs[number].next)
            shard.take_ownership(asyncio.run(self.ownership.acquire(number)), NOW, 0)
            shard.set_policy(QueuePolicy(7 + number, "000000000000", f"jobs-{number}"), NOW)
            self.commit(number)

    def commit(self, number: int) -> None:
        shard, log = self.shards[number], self.logs[number]
        rows, variable = shard.seal()
        frame = frames.build(
            cluster=self.ownership.cluster,
            region=0,
            shard=number,
            epoch=shard.epoch,
            number=log.next,
            time_ms=shard.last_time_ms,
            previous_digest=log.tail_digest,
            rows=rows,
            variable=variable,
        )
        outcomes: list[BaseException | None] = []
        log.append(frame, outcomes.append)
        assert outcomes == [None]
        shard.begin_frame(log.next)
        log.tick()

    def work(self, number: int, rounds: int) -> None:
        """Messages are sent, received, and returned or deleted: three frames a round."""
        shard, queue = self.shards[number], 7 + number
        for at in range(rounds):
            now = NOW + 1_000 * (at + 1)
            body = b"message %d " % at + b"x" * 500
            ask.send(shard, queue, [ask.message(body.decode(), sender="alice")], now)
            self.commit(number)
            leases = ask.receive(shard, queue, 1, 30_000, now + 1, "worker-1")
            self.commit(number)
            claim = Claim(leases[0].slot, leases[0].sequence, leases[0].epoch)
            if at % 2:
                ask.delete(shard, queue, [claim], now + 2)
            else:
                ask.nack(shard, queue, [ask.Nack(claim, 0, "no luck", "OddError")], now + 2)
            self.commit(number)

    def stop(self) -> None:
        for log in self.logs.values():
            log.close()
        self.ownership.close()


@pytest.fixture
def server(tmp_path: Path) -> object:
    server = Server(tmp_path / "data")
    server.work(0, 20)
    server.work(1, 3)
    yield server
    server.stop()


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def segment_of(log: Log, number: int) -> tuple[Path, int]:
    """The file and offset of a frame."""
    assert isinstance(log, FileLog)
    segment = next(segment for segment in log._segments if segment.first <= number < segment.stop)
    return Path(segment.path), segment.locate(number)[0]


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(bytes(content))


# --- inspect ---------------------------------------------------------------------------------------


def test_inspect_shows_frames_and_records(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "inspect", str(server.data), "--to", "4"]) == 0
    shown = lines(capsys)
    assert shown[0] == f"shard 0: {server.data}/shard-0000"
    assert re.fullmatch(
        r"frame 1  epoch 1  2023-11-14T22:13:20.000Z  2 records  \d+ bytes  digest [0-9a-f]{32}", shown[1]
    )
    assert "EPOCH" in shown[2] and "base=2023-11-14T22:13:20.000Z" in shown[2]
    assert "POLICY_SET" in shown[3] and "queue=7" in shown[3]
    assert "SENT" in shown[5] and "sequence=1" in shown[5] and "slot=0" in shown[5]
    assert "LEASED" in shown[7] and "deadline=2023-11-14T22:13:51.001Z" in shown[7]
    assert "RETURNED" in shown[9] and "reason=NACK" in shown[9]
    assert shown[10] == f"shard 1: {server.data}/shard-0001"
    assert not any("message 0" in line or "alice" in line for line in shown), "bodies are not shown unasked"


@pytest.mark.parametrize(
    ("type_", "flags", "shown"),
    [
        (Type.SENT, 0b101, ["DEDUPLICATED", "FIFO"]),
        (Type.LEASED, 1, ["ATTEMPT"]),
        (Type.BASE, 1, ["MORE"]),
        (Type.ARRIVED, 0b1100_0010, ["NOTED", "OVERLAY", "REFUSED"]),
        (Type.DELETED, 0b1001, ["flag 1", "LATE"]),  # no flag of this type
    ],
)
def test_a_flag_is_named_as_its_type_of_record_means_it(type_: Type, flags: int, shown: list[str]) -> None:
    row = (type_ | flags << 8).to_bytes(8, "little") + bytes(56)
    frame = frames.build(
        cluster=1, region=0, shard=0, epoch=1, number=9, time_ms=1, previous_digest=bytes(16), rows=row, variable=b""
    )
    assert logrecords.records(frame, content=False)[0]["flags"] == shown


def test_inspect_filters(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    def types(*arguments: str) -> list[str]:
        assert main(["log", "inspect", str(server.data / "shard-0000"), "--json", *arguments]) == 0
        return [record["type"] for line in lines(capsys) for record in json.loads(line)["records"]]

    everything = types()
    assert everything.count("SENT") == 20 and everything.count("LEASED") == 20
    assert types("--type", "deleted") == ["DELETED"] * everything.count("DELETED")
    assert types("--type", "policy-set") == ["POLICY_SET"]
    assert types("--sequence", "1")[:3] == ["SENT", "LEASED", "RETURNED"]
    assert types("--from", "2", "--to", "4") == ["SENT", "LEASED", "RETURNED"]
    assert types("--queue", "8") == []
    assert types("--queue", "7") == types("--queue", "jobs-0") == everything[1:]
    assert types("--queue", "nobody") == []


def test_inspect_as_json_with_content(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["log", "inspect", str(server.data), "--shard", "1", "--from", "2", "--to", "2", "--json", "--content"])
        == 0
    )
    (line,) = lines(capsys)
    frame = json.loads(line)
    stored = server.logs[1].frame(2)
    assert frame["shard"] == 1 and frame["frame"] == 2 and frame["bytes"] == stored.size
    assert frame["digest"] == stored.digest.hex() and frame["previous_digest"] == stored.previous_digest.hex()
    assert frame["cluster"] == f"{server.ownership.cluster:016x}"
    (record,) = frame["records"]
    assert record["type"] == "SENT" and record["queue"] == 8 and record["sequence"] == 1
    assert record["content"]["sender"] == "alice" and record["content"]["body"].startswith("message 0 xxx")


def test_inspect_goes_on_behind_damage(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.stop()
    path, offset = segment_of(server.logs[0], 3)
    flip(path, offset + 100)
    assert main(["log", "inspect", str(server.data), "--shard", "0", "--json"]) == 1
    output = capsys.readouterr()
    assert f"{path}, offset {offset}: frame 3 does not match its checksum" in output.err
    numbers = [json.loads(line)["frame"] for line in output.out.splitlines()]
    assert numbers == [1, 2, *range(4, server.logs[0].next)]


def test_an_unknown_type_shard_or_directory_is_refused(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, text in (
        (["--type", "NOSUCH"], "is not a record type; use one of EPOCH, BASE, SENT"),
        (["--shard", "x"], "is not a shard: use a number or catalog"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(["log", "inspect", str(server.data), *arguments])
        assert text in capsys.readouterr().err
    assert main(["log", "inspect", str(server.data), "--shard", "9"]) == 1
    assert "there is no log of shard 9" in capsys.readouterr().err
    assert main(["log", "inspect", str(server.data / "nowhere")]) == 1
    assert "is not a directory" in capsys.readouterr().err


# --- verify ----------------------------------------------------------------------------------------


def test_verify_of_sound_logs(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "verify", str(server.data)]) == 0
    shown = lines(capsys)
    assert shown[0] == "A server is using this directory: frames that it writes from now on are not checked."
    log = server.logs[0]
    assert (
        shown[1]
        == f"shard 0: 61 frames, 1 to 61, {len(log.segments())} segments, {log.bytes_retained()} bytes, epoch 1"
    )
    assert shown[-1] == "Sound."
    server.stop()
    assert main(["log", "verify", str(server.data)]) == 0
    assert lines(capsys) == shown[1:]


def test_verify_names_every_damage_and_what_to_do(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.stop()
    places = [segment_of(server.logs[0], number) for number in (5, 40, 61)]
    for path, offset in places:
        flip(path, offset + 90)
    before = {path: path.read_bytes() for path, _ in places}
    assert main(["log", "verify", str(server.data)]) == 1
    shown = lines(capsys)
    assert shown[0] == "shard 0: DAMAGED"
    for number, (path, offset), line in zip((5, 40, 61), places, shown[1:4], strict=True):
        assert line.startswith(f"  {path}, offset {offset}: frame {number} does not match its checksum")
        assert f"`baton log repair --truncate-at {number}`" in line
    assert shown[4].startswith("  Frames 6 to 39 after it can be read")
    assert shown[5].startswith("  Frames 41 to 60 after it can be read")
    assert shown[6].startswith("shard 1: 10 frames") and shown[-1] == "Damaged."
    assert {path: path.read_bytes() for path in before} == before


def test_verify_of_a_log_that_lost_its_end(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.stop()
    path, offset = segment_of(server.logs[0], 61)
    path.write_bytes(path.read_bytes()[:offset].ljust(8192, b"\0"))
    assert main(["log", "verify", str(server.data), "--shard", "0"]) == 1
    assert "frame 61 is missing, but the committed note says that frames up to 61 were committed" in lines(capsys)[1]


def test_verify_of_a_torn_write_is_no_damage(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.stop()
    segment = server.logs[0]._segments[-1]
    path = Path(segment.path)
    content = bytearray(path.read_bytes())
    content[segment.bytes : segment.bytes + 20] = b"BTNF" + b"\x01" * 16
    path.write_bytes(bytes(content))
    assert main(["log", "verify", str(server.data), "--shard", "0"]) == 0
    shown = lines(capsys)
    assert f"{path}, offset {segment.bytes}: incomplete write of frame 62 after a crash" in shown[1]
    assert shown[-1] == "Sound."
    assert path.read_bytes() == bytes(content)


def test_verify_remarks_on_a_snapshot_that_cannot_be_used(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    store = SnapshotStore(str(server.data / "shard-0000" / "snapshots"), shard=0, free_floor_bytes=0)
    path = Path(store.save(30, server.logs[0].frame(30).digest, {"a": b"state"}))
    flip(path, path.stat().st_size - 1)
    assert main(["log", "verify", str(server.data), "--shard", "0"]) == 0
    assert "Note: the snapshot of frame 30 cannot be used" in lines(capsys)[2]


def test_verify_of_a_directory_whose_identity_is_damaged(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.stop()
    (server.data / "identity").write_text("")
    assert main(["log", "verify", str(server.data)]) == 1
    assert "identity cannot be read" in lines(capsys)[0]


# --- repair ----------------------------------------------------------------------------------------


def test_repair_refuses_while_a_server_has_the_directory(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "repair", "--truncate-at", "10", "--shard", "0", "--yes", str(server.data)]) == 1
    assert f"is in use by process {os.getpid()}" in capsys.readouterr().err


def test_repair_asks_for_the_shard_and_for_yes(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.stop()
    before = {path: path.read_bytes() for path in server.data.rglob("*") if path.is_file()}
    assert main(["log", "repair", "--truncate-at", "10", str(server.data)]) == 1
    assert "choose one with --shard: 0, 1" in capsys.readouterr().err
    assert main(["log", "repair", "--truncate-at", "10", "--shard", "0", str(server.data)]) == 1
    shown = lines(capsys)
    assert shown[0] == f"shard 0: truncating {server.data}/shard-0000 at frame 10 removes"
    assert shown[1] == "  52 readable frames, and any unreadable data between them"
    assert "         17 SENT" in shown
    assert shown[-1] == "Nothing was changed. Make a copy of the directory, then run the command again with --yes."
    assert {path: path.read_bytes() for path in server.data.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("damaged", [5, 40, 61])
def test_repair_cuts_a_damaged_log_off_and_keeps_what_it_cut(
    server: Server, capsys: pytest.CaptureFixture[str], damaged: int
) -> None:
    log = server.logs[0]
    kept = list(log.frames(1, damaged))
    store = SnapshotStore(str(server.data / "shard-0000" / "snapshots"), shard=0, free_floor_bytes=0)
    store.save(3, log.frame(3).digest, {})
    store.save(60, log.frame(60).digest, {})
    server.stop()
    path, offset = segment_of(log, damaged)
    flip(path, offset + 90)
    cut = path.read_bytes()[offset:]
    later = {
        Path(segment.path): Path(segment.path).read_bytes() for segment in log._segments if segment.first > damaged
    }
    assert main(["log", "repair", "--truncate-at", str(damaged), "--shard", "0", "--yes", str(server.data)]) == 0
    shown = lines(capsys)
    files = [Path(line.strip()) for line in shown[shown.index("Done. The removed part is kept in:") + 1 :]]
    assert files[0].read_bytes() == cut
    assert {name.read_bytes() for name in files[1:]} == set(later.values()) and len(files) == len(later) + 1
    assert main(["log", "verify", str(server.data)]) == 0
    assert store.numbers() == ([3, 60] if damaged > 60 else [3])

    again = FileLog.open(str(server.data / "shard-0000"), shard=0, cluster=server_cluster(server), settings=SETTINGS)
    assert list(again.frames(1)) == kept and again.torn is None
    assert again.tail_digest == kept[-1].digest
    again.close()


def server_cluster(server: Server) -> int:
    return int(json.loads((server.data / "identity").read_text())["cluster"], 16)


def test_repair_at_a_missing_segment(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.stop()
    segment = server.logs[0]._segments[1]
    os.unlink(segment.path)
    assert main(["log", "verify", str(server.data)]) == 1
    assert f"--truncate-at {segment.first}`" in capsys.readouterr().out
    assert main(["log", "repair", "--truncate-at", "30", "--shard", "0", "--yes", str(server.data)]) == 1
    assert f"To truncate there, use --truncate-at {segment.first}" in capsys.readouterr().err
    arguments = ["--truncate-at", str(segment.first), "--shard", "0", "--yes", str(server.data)]
    assert main(["log", "repair", *arguments]) == 0
    assert main(["log", "verify", str(server.data)]) == 0


def test_repair_at_the_first_frame_of_a_segment_and_of_the_log(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.stop()
    for number in (server.logs[0]._segments[1].first, 1):
        arguments = ["--truncate-at", str(number), "--yes", str(server.data / "shard-0000")]
        assert main(["log", "repair", *arguments]) == 0
        log = FileLog.open(str(server.data / "shard-0000"), shard=0, cluster=server_cluster(server), settings=SETTINGS)
        assert (log.first, log.next) == (1, number)
        log.close()
    assert main(["log", "repair", "--truncate-at", "0", "--yes", str(server.data / "shard-0000")]) == 1
    assert "frame 0 is not in the log" in capsys.readouterr().err
