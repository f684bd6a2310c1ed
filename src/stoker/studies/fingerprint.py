"""What makes two machines the same for a study."""

from hashlib import sha256
from typing import Any

from stoker.analysis.machines import facts_of
from stoker.records import Machine, encode


def fingerprint_of(machine: Machine) -> str:
    """The machine's fingerprint: twelve hexadecimal digits."""
    return fingerprint(facts_of(machine))


def fingerprint(facts: dict[str, Any]) -> str:
    """The fingerprint of the facts of a machine."""
    return sha256(encode(dict(sorted(facts.items())))).hexdigest()[:12]
