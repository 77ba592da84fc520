"""The part of CloudWatch's API that autoscalers of SQS read: GetMetricData, GetMetricStatistics and ListMetrics for the
metrics of the namespace AWS/SQS.
"""

from batonq.api.cloudwatch.app import CloudWatchApp
from batonq.api.cloudwatch.history import NodeHistory

__all__ = ["CloudWatchApp", "NodeHistory"]
