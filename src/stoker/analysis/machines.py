"""What makes two machines the same, and a machine in a few words."""

from typing import Any

from stoker.records import Machine


def facts_of(machine: Machine) -> dict[str, Any]:
    """The facts by which two machines differ: processor, usable CPUs, GPUs and their memory. Versions are left out."""
    return {
        "cpu": machine.cpu.model,
        "usable_cpus": machine.cpu.usable,
        "gpus": [{"name": gpu.name, "memory_bytes": gpu.memory_total_bytes} for gpu in machine.gpus],
    }


def label(facts: dict[str, Any]) -> str:
    """A machine in a few words."""
    if "label" in facts:
        return str(facts["label"])
    gpus = facts.get("gpus") or []
    gpu = f", {len(gpus)} × {gpus[0]['name']}" if len(gpus) > 1 else f", {gpus[0]['name']}" if gpus else ", no GPU"
    return f"{facts.get('usable_cpus', 0):g} CPUs ({facts.get('cpu', 'unknown')}){gpu}"
