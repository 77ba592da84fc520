"""How many workers a queue needs: policies, the scaler that limits their pace, sizing, and the control loop."""

from batonq.scaling.autoscale import Autoscale, parse_lane
from batonq.scaling.policies import Drain, KeepUp, Lag, Largest, PerWorker, Policy, Sla, Steps, Wish
from batonq.scaling.readings import Rates, Reading, combined
from batonq.scaling.runner import Pool, run_autoscaled
from batonq.scaling.scaler import Decision, Pace, Scaler
from batonq.scaling.sources import group_readings, sqs_readings, stats_readings

__all__ = [
    "Autoscale",
    "Decision",
    "Drain",
    "KeepUp",
    "Lag",
    "Largest",
    "Pace",
    "PerWorker",
    "Policy",
    "Pool",
    "Rates",
    "Reading",
    "Scaler",
    "Sla",
    "Steps",
    "Wish",
    "combined",
    "group_readings",
    "parse_lane",
    "run_autoscaled",
    "sqs_readings",
    "stats_readings",
]
