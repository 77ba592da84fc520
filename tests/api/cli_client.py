"""Runs in a process of its own: every SQS command of the AWS CLI, through the CLI's own entry point.

Usage: cli_client.py ENDPOINT ACCOUNT. One process for all of them, because each start of `aws` takes a second. Prints
OK when all went well; any surprise is an exception.
"""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from awscli.clidriver import create_clidriver


class Cli:
    def __init__(self, endpoint: str) -> None:
        self.options = ["--endpoint-url", endpoint, "--region", "us-east-1", "--output", "json"]
        self.used: set[str] = set()

    def run(self, *words: str, service: str = "sqs") -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        self.used.add(words[0])
        with redirect_stdout(out), redirect_stderr(err):
            code = create_clidriver().main([*self.options, service, *words])
        return code, out.getvalue(), err.getvalue()

    def __call__(self, *words: str, service: str = "sqs") -> Any:
        code, out, err = self.run(*words, service=service)
        assert code == 0, (words, err)
        return json.loads(out) if out.strip() else {}

    def refused(self, code_name: str, *words: str) -> None:
        code, _, err = self.run(*words)
        assert code != 0 and f"({code_name})" in err, (words, err)


def main(endpoint: str, account: str) -> None:
    aws = Cli(endpoint)
    url = queues(aws, endpoint, account)
    messages(aws, url)
    moves(aws, account)
    aws("delete-queue", "--queue-url", url)
    aws.refused("AWS.SimpleQueueService.NonExistentQueue", "get-queue-url", "--queue-name", "cli")
    assert len(aws.used) == 23, sorted(aws.used)
    assert aws("get-caller-identity", service="sts")["Account"] == account
    print("OK")


def queues(aws: Cli, endpoint: str, account: str) -> str:
    created = aws("create-queue", "--queue-name", "cli", "--attributes", "DelaySeconds=0", "--tags", "a=1,b=2")
    url = created["QueueUrl"]
    assert isinstance(url, str) and url == f"{endpoint}/{account}/cli"
    assert aws("get-queue-url", "--queue-name", "cli") == created
    assert aws("list-queues", "--queue-name-prefix", "c")["QueueUrls"] == [url]
    aws("set-queue-attributes", "--queue-url", url, "--attributes", "VisibilityTimeout=7,Baton.StrictReceipts=true")
    names = ["VisibilityTimeout", "Baton.StrictReceipts", "QueueArn"]
    # The CLI checks no attribute names of ours.
    found = aws("get-queue-attributes", "--queue-url", url, "--attribute-names", *names)["Attributes"]
    assert found == {
        "VisibilityTimeout": "7",
        "Baton.StrictReceipts": "true",
        "QueueArn": f"arn:aws:sqs:us-east-1:{account}:cli",
    }
    aws("tag-queue", "--queue-url", url, "--tags", "c=3")
    aws("untag-queue", "--queue-url", url, "--tag-keys", "a", "b")
    assert aws("list-queue-tags", "--queue-url", url)["Tags"] == {"c": "3"}
    aws(
        *("add-permission", "--queue-url", url, "--label", "l"),
        *("--aws-account-ids", "111111111111", "--actions", "SendMessage"),
    )
    aws("remove-permission", "--queue-url", url, "--label", "l")
    return url


def messages(aws: Cli, url: str) -> None:
    attributes = json.dumps({"k": {"DataType": "String", "StringValue": "v"}})
    sent = aws("send-message", "--queue-url", url, "--message-body", "h\u00e9llo", "--message-attributes", attributes)
    [message] = aws(
        *("receive-message", "--queue-url", url, "--wait-time-seconds", "1"),
        *("--message-attribute-names", "All", "--message-system-attribute-names", "All"),
    )["Messages"]
    assert message["Body"] == "h\u00e9llo" and message["MessageId"] == sent["MessageId"]
    assert message["MessageAttributes"] == json.loads(attributes)
    receipt = message["ReceiptHandle"]
    change = ["change-message-visibility", "--queue-url", url, "--receipt-handle", receipt]
    aws(*change, "--visibility-timeout", "60")
    aws("delete-message", "--queue-url", url, "--receipt-handle", receipt)
    aws.refused("InvalidParameterValue", *change, "--visibility-timeout", "60")
    entries = json.dumps([{"Id": str(number), "MessageBody": f"m{number}"} for number in range(3)])
    assert len(aws("send-message-batch", "--queue-url", url, "--entries", entries)["Successful"]) == 3
    received = aws("receive-message", "--queue-url", url, "--max-number-of-messages", "10")["Messages"]
    handles = [{"Id": str(at), "ReceiptHandle": message["ReceiptHandle"]} for at, message in enumerate(received)]
    changes = json.dumps([{**handle, "VisibilityTimeout": 30} for handle in handles])
    changed = aws("change-message-visibility-batch", "--queue-url", url, "--entries", changes)
    assert len(changed["Successful"]) == 3
    deleted = aws("delete-message-batch", "--queue-url", url, "--entries", json.dumps(handles))
    assert len(deleted["Successful"]) == 3
    assert aws("receive-message", "--queue-url", url) == {}
    aws("purge-queue", "--queue-url", url)


def moves(aws: Cli, account: str) -> None:
    dead = aws("create-queue", "--queue-name", "cli-dead")["QueueUrl"]
    dead_arn = f"arn:aws:sqs:us-east-1:{account}:cli-dead"
    policy = {"RedrivePolicy": json.dumps({"deadLetterTargetArn": dead_arn, "maxReceiveCount": "1"})}
    work = aws("create-queue", "--queue-name", "cli-work", "--attributes", json.dumps(policy))["QueueUrl"]
    assert aws("list-dead-letter-source-queues", "--queue-url", dead)["queueUrls"] == [work]
    for number in range(3):
        aws("send-message", "--queue-url", dead, "--message-body", str(number))
    handle = aws(
        *("start-message-move-task", "--source-arn", dead_arn, "--max-number-of-messages-per-second", "1"),
        *("--destination-arn", f"arn:aws:sqs:us-east-1:{account}:cli-work"),
    )
    [task] = aws("list-message-move-tasks", "--source-arn", dead_arn)["Results"]
    assert task["Status"] == "RUNNING" and task["TaskHandle"] == handle["TaskHandle"]
    cancelled = aws("cancel-message-move-task", "--task-handle", handle["TaskHandle"])
    assert cancelled["ApproximateNumberOfMessagesMoved"] < 3


if __name__ == "__main__":
    main(*sys.argv[1:])
