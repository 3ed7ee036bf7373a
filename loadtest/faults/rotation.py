"""Which faults a bounded run takes. Pure: one seed and table give one order, and seeds come round to every fault."""

import random

# Until one has been measured: a build of what changed, and a few tests against a database.
GUESS_SECONDS = 60


def order(faults, seed):
    """The table in an order of the seed's, package by package: each further package costs a build of its own."""
    chance = random.Random(seed)
    groups = {}
    for fault in faults:
        groups.setdefault(fault.packages[0], []).append(fault)
    packages = list(groups)
    chance.shuffle(packages)
    for package in packages:
        chance.shuffle(groups[package])
    return [fault for package in packages for fault in groups[package]]


def fits(elapsed, budget, durations):
    """Whether another fault may begin, if it takes as long as the slowest so far."""
    return elapsed + max(durations, default=GUESS_SECONDS) <= budget
