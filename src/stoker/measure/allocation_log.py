"""What one step of a workload asks of the device's allocator, as a function of the batch size."""

from typing import Literal

from stoker.records import Record

Kind = Literal["tensor", "scratch", "workspace"]


class Storage(Record, frozen=True):
    """One piece of memory: so many bytes, so many more for each item of the batch, and for each pair of items.

    `scratch` is a convolution's workspace, which it takes where there is room and does without where there is not;
    `workspace` is cuBLAS', taken at the first matrix product and kept.
    """

    fixed_bytes: int
    item_bytes: float = 0.0
    square_bytes: float = 0.0
    kind: Kind = "tensor"
    operator: str = ""

    def at(self, batch_size: int) -> int:
        return self.fixed_bytes + round(self.item_bytes * batch_size + self.square_bytes * batch_size**2)


class AllocationLog(Record, frozen=True):
    """Births and deaths of storages in their order: `n` is the birth of storage `n`, `-n - 1` its death.

    `init` makes the model; `first` is a whole step from there, in which whatever lasts (optimizer state, workspaces) is
    made; `steady` is every later one; `validate`, where it was asked for, is a pass over validation data between two
    of them. `workspace_bytes` is what cuBLAS takes a handle on the GPU that was named. `unseen` says in words what the
    log cannot know.
    """

    storages: tuple[Storage, ...]
    init: tuple[int, ...]
    first: tuple[int, ...]
    steady: tuple[int, ...]
    batch_size: int
    validate: tuple[int, ...] = ()
    workspace_bytes: int = 32 * 2**20
    attention: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    seconds: float = 0.0
