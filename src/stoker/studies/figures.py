"""Summary figures of a finished run, for tables: what the store keeps beside the raw samples."""

from collections.abc import Iterable
from statistics import fmean, median
from typing import Any

from stoker.analysis.convergence import difference, sentences
from stoker.analysis.spans import steady
from stoker.records import CandidateTrial, Convergence, Limit, Plan, Record, Trial


def figures_of(record: Record) -> dict[str, Any]:
    """The summary columns of a trial, a limit, a plan, a candidate of a search or a comparison of two batch sizes."""
    if isinstance(record, Trial):
        return _of_trial(record)
    if isinstance(record, Limit):
        return _of_limit(record)
    if isinstance(record, Plan):
        return _of_plan(record)
    if isinstance(record, CandidateTrial):
        return _of_candidate(record)
    if isinstance(record, Convergence):
        return _of_convergence(record)
    return {}


def _of_trial(trial: Trial) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "workload": trial.workload.name,
        "model": trial.workload.model,
        "data": trial.workload.data,
        "mode": trial.workload.mode,
        "device": trial.workload.device,
        "parameters": trial.workload.parameters,
        "pin_memory": trial.setting.pin_memory,
        "interference": trial.interference,
        "reference_s": median(trial.reference_s) if trial.reference_s else None,
    }
    if trial.outcome != "done":
        return figures
    span = steady(trial)
    figures |= {
        "seconds": trial.total_s,
        "run_items": trial.items,
        "items_per_s": trial.items_per_s,
        "first_batch_s": trial.first_batch_s,
        "steady_item_s": span.seconds / span.items if span and span.items else None,
    }
    figures |= {f"{name}_s": stage.total_s for name, stage in trial.stages.items() if "." not in name}
    figures |= trial.peaks
    epochs = trial.timeline.epoch_s
    if len(epochs) > 1:
        figures |= {"epoch_s": fmean(epochs), "first_epoch_s": epochs[0], "later_epoch_s": median(epochs[1:])}
        figures |= {"shortest_epoch_s": min(epochs[1:]), "longest_epoch_s": max(epochs[1:])}
    for name, gauge in trial.gauges.items():
        figures[f"{name}_mean"] = gauge.average
        figures[f"{name}_max"] = gauge.maximum
    return figures


def _of_limit(limit: Limit) -> dict[str, Any]:
    return {
        "workload": limit.workload,
        "mode": limit.mode,
        "max_batch": limit.max_batch,
        "max_batch_low": limit.interval[0],
        "max_batch_high": limit.interval[1],
        "predicted_batch": limit.predicted_batch,
        "bytes_per_item": limit.bytes_per_item,
        "fixed_bytes": limit.fixed_bytes,
        "ran": limit.ran,
        "tuning_s": limit.seconds,
    }


def _of_plan(plan: Plan) -> dict[str, Any]:
    measured = plan.measured
    return {
        "workload": plan.workload,
        "model": plan.workload,
        "mode": plan.mode,
        "batch_size": plan.batch_size,
        "num_workers": plan.num_workers,
        "prefetch_factor": plan.prefetch_factor,
        "seconds": measured.total_s if measured else None,
        "predicted_s": plan.predicted_s,
        "items_per_s": measured.steady_items_per_s if measured else None,
        "first_batch_s": measured.first_batch_s if measured else None,
        "gain": plan.gain,
        "tuning_s": plan.seconds,
    }


def _of_candidate(trial: CandidateTrial) -> dict[str, Any]:
    """Stages that add up to `seconds`, named as in the published figures. What Stoker does besides (dividing the model
    into blocks, making the input of a part, resampling) has columns of its own and is no part of `seconds`."""
    figures: dict[str, Any] = {
        "workload": trial.model,
        "model": trial.model,
        "data": trial.data,
        "mode": "infer",
        "device": trial.device,
        "part": trial.part,
        "classes": trial.classes,
        "parameters": trial.parameters,
        "blocks": trial.blocks,
        "blocks_run": trial.blocks_run,
        "feature_size": trial.feature_size,
        "interference": trial.interference,
        "reference_s": median(trial.reference_s) if trial.reference_s else None,
    }
    if trial.outcome != "done":
        return figures
    totals = trial.stages.totals_s
    stages = {
        "prepare_model_s": totals["read"] + totals["build"] + totals["move"],
        "prepare_data_s": totals["load"],
        "copy_s": totals["copy"],
        "forward_s": totals["infer"],
        "score_s": totals["score"],
    }
    return {
        **figures,
        "seconds": sum(stages.values()),
        "run_items": trial.items,
        **stages,
        "weights_read_s": sum(trial.stages.read_s),
        "weights_resident": trial.stages.read_resident,
        "divide_s": totals["split"],
        "stored_input_s": totals["prefix"],
        "candidate_s": trial.total_s,
        **trial.peaks,
    }


def _of_convergence(found: Convergence) -> dict[str, Any]:
    """For each of the two sizes the means over its seeds, the other size's with `against_` in front."""
    seen = difference(found)
    figures: dict[str, Any] = {
        "workload": found.workload.name,
        "model": found.workload.model,
        "data": found.workload.data,
        "mode": "train",
        "device": found.workload.device,
        "pairs": seen.pairs,
        "finding": "; ".join(sentences(found, seen)),
    }
    for prefix, size in (("", found.batch_size), ("against_", found.against)):
        runs = [run for run in found.of(size) if run.outcome == "done" and run.checkpoints]
        firsts, lasts = [run.checkpoints[0] for run in runs], [run.checkpoints[-1] for run in runs]
        figures |= {
            f"{prefix}metric_before": _mean(each.metric for each in firsts),
            f"{prefix}metric": _mean(each.metric for each in lasts),
            f"{prefix}validation_loss": _mean(each.validation_loss for each in lasts),
            f"{prefix}train_s": _mean(run.train_s for run in runs),
            f"{prefix}learned": seen.learned[size],
        }
    for name, value in (("metric", seen.metric), ("loss", seen.loss)):
        figures[f"{name}_difference"] = value.mean if value else None
        figures[f"{name}_margin"] = value.margin if value else None
    figures["metric_scale"] = seen.metric_scale
    return figures


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
