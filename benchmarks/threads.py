"""A loop without workers whose step sleeps: what torch's threads cost it, as they sleep too and have to be woken.

python benchmarks/threads.py

All threads and one, in turns, each run in a process of its own; what is compared are two runs of a round.
"""

from typing import Any

from common import arguments, quartiles, say, write

from stoker.measure.session import Job, Script, run_script
from stoker.records import Extent, Setting, WorkloadSpec

ITEMS, ROUNDS = 1024, 7
CASES = [(data, device) for data in ("tensors", "jpeg") for device in ("sleep:0.4ms/item", "sleep:1.5ms/item")]
SIZES = (8, 16, 32, 64)


def rounds(size: int, seen: dict[int | None, list[float]]) -> Script[None]:
    setting = Setting(batch_size=size)
    yield Job(setting=setting, extent=Extent(batches=ITEMS // size, warmup=0), sleep_s=0.0)
    for number in range(ROUNDS):
        for threads in (None, 1) if number % 2 == 0 else (1, None):
            job = Job(setting=setting, extent=Extent(batches=ITEMS // size, warmup=0), threads=threads)
            trial = yield job
            assert trial.outcome == "done", trial.problem
            seen[threads].append(trial.total_s)


def main() -> None:
    options = arguments(__doc__).parse_args()
    rows: list[dict[str, Any]] = []
    for data, device in CASES:
        for size in SIZES:
            seen: dict[int | None, list[float]] = {None: [], 1: []}
            run_script(
                WorkloadSpec(spec="resnet18", data=data, items=ITEMS), rounds(size, seen), mode="infer", device=device
            )
            ratio = quartiles([one / other for one, other in zip(seen[1], seen[None], strict=True)])
            row = {"data": data, "device": device, "batch": size, "all_s": seen[None], "one_s": seen[1]}
            rows.append({**row, "ratio": ratio})
            say(f"{data:8s} {device:18s} batch {size:3d}: {ratio[1]:.2f} ({ratio[0]:.2f} - {ratio[2]:.2f})")
    write(options.output, "threads", rows)


if __name__ == "__main__":
    main()
