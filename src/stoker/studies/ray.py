"""Trials on the nodes of a Ray cluster, one a node or one a GPU. Ray places and watches; there is no scheduler here.

A seat is a Ray actor that holds a whole node, or one GPU with its share of the CPUs, as long as the executor lives. So
nothing else that asks Ray for CPUs runs beside a trial. If the actor ends before its trial, the seat is lost. Ray tries
nothing again: what was lost is recorded, and the driver gives the task out once more.
"""

import os
import queue
import signal
import socket
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import msgspec

from stoker.errors import InputError, MachineError
from stoker.events import OnEvent
from stoker.machine import inspect
from stoker.machine.cpu import worker_processes
from stoker.packages import optional
from stoker.records import Machine, Record, Task, decode, encode
from stoker.studies.executors import Finished, OnFinished, Per
from stoker.studies.fingerprint import fingerprint_of
from stoker.studies.nodes import Candidate, NeededPath, Node, Runner, needed_paths
from stoker.studies.ray_cluster import LocalCluster
from stoker.units import format_count

OnNote = Callable[[str], None]


class RayRules(Record, frozen=True):
    """How long to wait for a cluster."""

    connect_s: float = 5.0
    """For an answer from its address, or from a node's: Ray itself would try for minutes."""
    first_look_s: float = 20.0
    """For all nodes to begin, once one is there. Those that begin later, such as nodes in use, join later."""
    look_every_s: float = 5.0
    """How often to look for nodes that joined: short beside the start of a node."""
    patience_s: float = 120.0
    """For a node, when all were lost: an autoscaler replaces one within minutes."""
    search_poll_s: float = 0.5
    """How often a search looks for nodes that have become free."""
    most_losses: int = 2
    """How often a candidate of a search is tried again whose node was lost; as for runs of a study."""
    most_ends: int = 3
    """How often a node's worker may end before the node is left out."""


RULES = RayRules()


@dataclass(eq=False)
class _Seat:
    """Room for one trial. `node` is known once its runner has answered `describing`."""

    node_id: str
    number: int
    name: str
    actor: Any
    describing: Any
    node: Node | None = None


class RayExecutor:
    """Runs tasks on the nodes of a Ray cluster, in child processes as on this machine.

    `address` is that of the cluster; without one it is `RAY_ADDRESS`, and without that a local cluster is started. It
    ends with the executor. `per="gpu"` gives each trial one GPU with its share of the node's CPUs, in place of a whole
    node. Files must lie at the same path on all nodes, or come with `runtime_env`, which is handed to Ray. `on_note`
    hears in a sentence what a person should know: which cluster, which nodes are left out, which versions differ.

    Use it in a `with` statement, or call `close`. Raises InputError and MachineError for a cluster that cannot be used.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        per: Per = "node",
        runtime_env: dict[str, Any] | None = None,
        on_note: OnNote | None = None,
    ) -> None:
        if per not in ("node", "gpu"):
            raise InputError(f"a trial takes a node or a gpu, got {per!r}")
        self.per: Per | None = per
        self._runtime_env, self._on_note = runtime_env, on_note or (lambda _: None)
        self._seats: dict[tuple[str, int], _Seat] = {}
        self._free: deque[_Seat] = deque()
        self._changed = threading.Condition()
        self._machines: dict[str, Machine] = {}
        self._ends: dict[tuple[str, int], int] = {}
        self._left_out: set[tuple[str, int]] = set()
        self._said: set[str] = set()
        self._needed: tuple[NeededPath, ...] = ()
        self._lacks: list[str] = []
        self._looked = -RULES.look_every_s
        self._last_seat = monotonic()
        self._is_stopped = False
        self._local: LocalCluster | None = None
        self._is_ours = False
        self._ray = self._connected(address)

    def __enter__(self) -> "RayExecutor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------ the interface of executors

    def begin(self, tasks: Sequence[Task]) -> None:
        """Take a seat on each node, and leave out the nodes that lack a path which these tasks name."""
        self._needed = needed_paths(tasks)
        self._ask_again()
        deadline = monotonic() + RULES.first_look_s
        self._look()
        while (waiting := [seat for seat in self._seats.values() if seat.node is None]) and (
            monotonic() < deadline or not self._ready()
        ):
            self._ray.wait([seat.describing for seat in waiting], timeout=0.5)
            self._welcome()
            if monotonic() >= deadline:
                self._say(f"waiting for room on {_names(waiting)}: other work of the cluster has it")
        if not self._ready():
            raise self._unusable()
        for seat in self._seats.values():
            if seat.node is None:
                self._say(f"{seat.name} is in use; it joins when it is free")
        self._say_versions()

    def machines(self) -> Sequence[Machine]:
        return tuple(self._machines.values())

    def at_once(self, jobs: int) -> int:
        if monotonic() - self._looked >= RULES.look_every_s:
            self._look()
        self._welcome()
        count = len(self._ready())
        if count:
            self._last_seat = monotonic()
        elif monotonic() - self._last_seat > RULES.patience_s:
            raise MachineError("no node of the cluster is left; what was recorded is safe, the same command goes on")
        else:
            self._say(f"no node is left; waiting {RULES.patience_s:g} s for another")
        return count

    def run(self, task: Task, *, timeout_s: float | None, on_event: OnEvent | None) -> Finished:
        """Run a task on a free seat. Events of the run stay on its node."""
        began, clock = datetime.now(UTC), perf_counter()
        seat = self._take()
        if seat is None:
            return _lost("the study was stopped", began, perf_counter() - clock)
        try:
            answer = self._ray.get(seat.actor.run.remote(encode(task), timeout_s))
        except self._ray.exceptions.RayTaskError as error:
            self._give_back(seat)
            sentence = f"the node could not run it: {_last_line(error)}"
            finished = Finished(
                outcome="failed", figures={}, began=began, wall_s=perf_counter() - clock, problem=sentence
            )
            return self._of(seat, finished)
        except self._ray.exceptions.RayError as error:
            return self._of(seat, _lost(self._end_of(seat, error), began, perf_counter() - clock))
        self._give_back(seat)
        try:
            finished = msgspec.msgpack.decode(answer, type=Finished)
        except msgspec.MsgspecError as error:
            sentence = f"node {seat.name} gave an answer that this version cannot read: {error}"
            finished = Finished(
                outcome="failed", figures={}, began=began, wall_s=perf_counter() - clock, problem=sentence
            )
        return self._of(seat, finished)

    def search(
        self,
        tasks: Sequence[Task],
        on_finished: OnFinished,
        *,
        host_memory_bytes: int | None = None,
        timeout_s: float | None = None,
        on_event: OnEvent | None = None,
    ) -> None:
        """Run the candidates of a search, some on each node at a time: those of one node share what they read. What a
        lost node had not finished goes to another one."""
        left, open_places = deque(range(len(tasks))), set(range(len(tasks)))
        results: queue.SimpleQueue[tuple[int, Finished]] = queue.SimpleQueue()

        def run(seat: _Seat, places: Sequence[int]) -> None:
            share = encode(tuple(tasks[place] for place in places))
            for index, finished in self._searched(seat, share, len(places), host_memory_bytes, timeout_s):
                results.put((places[index], finished))

        losses: Counter[int] = Counter()
        try:
            while open_places:
                room = self.at_once(len(tasks))
                while left and self._free:
                    seat = self._take()
                    if seat is None:
                        break
                    places = [left.popleft() for _ in range(max(1, len(left) // (2 * max(1, room))))]
                    threading.Thread(target=run, args=(seat, places), name="stoker-search", daemon=True).start()
                with suppress(queue.Empty):
                    place, finished = results.get(timeout=RULES.search_poll_s)
                    losses[place] += finished.is_lost
                    if finished.is_lost and losses[place] <= RULES.most_losses:
                        left.appendleft(place)
                        continue
                    open_places.discard(place)
                    on_finished(place, finished)
        except BaseException:
            self.stop()
            raise

    def _searched(
        self, seat: _Seat, share: bytes, count: int, host_memory_bytes: int | None, timeout_s: float | None
    ) -> Iterator[tuple[int, Finished]]:
        """What became of each candidate of a seat's share, in the order in which they end; all of them, also where the
        seat was lost."""
        began, clock, open_places = datetime.now(UTC), perf_counter(), set(range(count))
        try:
            method = seat.actor.search.options(num_returns="streaming")
            for answer in method.remote(share, host_memory_bytes, timeout_s):
                candidate = msgspec.msgpack.decode(self._ray.get(answer), type=Candidate)
                open_places.discard(candidate.index)
                yield candidate.index, self._of(seat, candidate.finished)
        except self._ray.exceptions.RayTaskError as error:
            problem = f"the node could not run it: {_last_line(error)}"
            failed = Finished(outcome="failed", figures={}, began=began, wall_s=perf_counter() - clock, problem=problem)
            self._give_back(seat)
        except self._ray.exceptions.RayError as error:
            failed = _lost(self._end_of(seat, error), began, perf_counter() - clock)
        else:
            self._give_back(seat)
            failed = _lost(f"node {seat.name} gave no answer", began, perf_counter() - clock)
        for index in sorted(open_places):
            yield index, self._of(seat, failed)

    def stop(self) -> None:
        with self._changed:
            self._is_stopped = True
            seats = list(self._seats.values())
            self._seats.clear()
            self._free.clear()
            self._changed.notify_all()
        for seat in seats:
            self._kill(seat)

    def close(self) -> None:
        """Give all seats back. A cluster that was started here ends; another one is left as it was."""
        self.stop()
        if self._is_ours:
            self._is_ours = False
            self._ray.shutdown()
        if self._local is not None:
            self._local.close()
            self._local = None

    # ------------------------------------------------------------ the cluster

    def _connected(self, address: str | None) -> Any:
        """Ray, connected."""
        if "ray" in sys.modules and sys.modules["ray"].is_initialized():
            if address or self._runtime_env:
                raise InputError(
                    "this process is connected to a Ray cluster already: leave out address and runtime_env"
                )
            return sys.modules["ray"]  # the caller's own connection, which stays as it is
        address = address or os.environ.get("RAY_ADDRESS")
        address = None if address == "local" else address
        if find_spec("ray") is None:
            optional("ray", extra="ray")  # says how to install it
        if address:
            _check_address(address)
        else:
            cpus = worker_processes()
            self._local = LocalCluster(cpus)
            address = self._local.address
            self._on_note(
                f"no cluster given (--ray-address, RAY_ADDRESS): using a local one with {format_count(cpus, 'CPU')}"
            )
        try:
            ray = optional("ray", extra="ray")  # only now: it reads variables of the local cluster when it is imported
            if self._local is not None:
                ray._private.ray_constants.ENABLE_RAY_CLUSTER = False  # where it was imported before
            _keep_off_stdout()
            with _own_signals():
                ray.init(address=address, log_to_driver=False, logging_level="ERROR", runtime_env=self._runtime_env)
        except BaseException as error:
            if self._local is not None:
                self._local.close()
            if isinstance(error, Exception):
                raise MachineError(f"cannot use the Ray cluster at {address}: {_last_line(error)}") from None
            raise
        self._is_ours = True
        return ray

    def _look(self) -> None:
        """Ask for a seat on every node, or GPU, that has none."""
        self._looked = monotonic()
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        hosts = [node["NodeManagerHostname"] for node in alive]
        for node in alive:
            cpus, gpus = (int(node["Resources"].get(name, 0)) for name in ("CPU", "GPU"))
            host = node["NodeManagerHostname"]
            name = host if hosts.count(host) == 1 else f"{host} ({node['NodeID'][:6]})"
            if not cpus or (self.per == "gpu" and not gpus):
                continue
            for number in range(gpus if self.per == "gpu" else 1):
                place = (node["NodeID"], number)
                if place not in self._seats and place not in self._left_out and not self._is_stopped:
                    self._seats[place] = self._seat(place, name, cpus, gpus)

    def _seat(self, place: tuple[str, int], name: str, cpus: int, gpus: int) -> _Seat:
        """Ask for a seat: its actor begins when nothing else has the CPUs."""
        affinity = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(place[0], soft=False)
        is_share = self.per == "gpu"
        options: dict[str, Any] = {
            "num_cpus": max(1, cpus // gpus) if is_share else cpus,
            "num_gpus": 1 if is_share else gpus,
            "scheduling_strategy": affinity,
            "max_restarts": 0,
            "max_task_retries": 0,
        }
        share = (place[1], gpus) if is_share else None
        actor = self._ray.remote(Runner).options(**options).remote(str(Path.cwd()), self._brings_files(), share)
        return _Seat(*place, name, actor, actor.describe.remote(encode(self._needed)))

    def _brings_files(self) -> bool:
        """Whether Ray puts a copy of the driver's folder on each node."""
        return bool(self._ray.get_runtime_context().runtime_env.get("working_dir"))

    def _ask_again(self) -> None:
        """Have the runners that there are look for the paths that are needed now."""
        with self._changed:
            self._free.clear()
            for seat in self._ready():
                seat.node, seat.describing = None, seat.actor.describe.remote(encode(self._needed))

    def _welcome(self) -> None:
        """Take in the seats whose runners have answered."""
        waiting = {seat.describing: seat for seat in list(self._seats.values()) if seat.node is None}
        if not waiting:
            return
        done, _ = self._ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
        for ref in done:
            seat = waiting[ref]
            try:
                node = decode(self._ray.get(ref), Node)
            except Exception as error:
                self._leave_out(seat, f"cannot be used: {_last_line(error)}")
                continue
            if node.lacks:
                self._leave_out(seat, "; ".join(node.lacks))
                continue
            with self._changed:
                seat.node = msgspec.structs.replace(node, machine=self._same(node.machine))
                self._free.append(seat)
                self._changed.notify()

    def _same(self, machine: Machine) -> Machine:
        """The first machine of this kind that was seen, so that a kind is there once."""
        return self._machines.setdefault(fingerprint_of(machine), machine)

    def _leave_out(self, seat: _Seat, why: str) -> None:
        place = (seat.node_id, seat.number)
        self._seats.pop(place, None)
        self._left_out.add(place)
        self._lacks.append(f"{seat.name}: {why}")
        self._say(f"node {seat.name} is left out: {why}")
        self._kill(seat)

    def _unusable(self) -> MachineError | InputError:
        if self._lacks:
            return InputError(f"no node of the cluster can run these tasks ({_first(self._lacks)})")
        what = "GPU" if self.per == "gpu" else "CPU"
        return MachineError(f"the cluster has no {what}, or none that may be used; see `ray status`")

    # ------------------------------------------------------------ seats

    def _ready(self) -> list[_Seat]:
        return [seat for seat in list(self._seats.values()) if seat.node is not None]

    def _take(self) -> _Seat | None:
        """A free seat, as soon as there is one; None once the executor is stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._free or self._is_stopped)
            return None if self._is_stopped else self._free.popleft()

    def _give_back(self, seat: _Seat) -> None:
        with self._changed:
            if self._seats.get((seat.node_id, seat.number)) is seat:
                self._free.append(seat)
                self._changed.notify()

    def _end_of(self, seat: _Seat, error: Exception) -> str:
        """Give up a seat whose actor has ended; what is known about that, in a sentence."""
        place = (seat.node_id, seat.number)
        with self._changed:
            if self._seats.get(place) is seat:
                del self._seats[place]
        self._kill(seat)
        if self._is_stopped:
            return "the study was stopped"
        if not self._is_alive(seat.node_id):
            self._left_out.add(place)
            self._say(f"node {seat.name} was lost; what it ran is run again")
            return f"node {seat.name} was lost while it ran this"
        self._ends[place] = self._ends.get(place, 0) + 1
        sentence = f"the Ray worker on node {seat.name} ended while it ran this: {_cause(error)}"
        if self._ends[place] >= RULES.most_ends:
            self._left_out.add(place)
            self._say(f"node {seat.name} is left out: its Ray worker ended {RULES.most_ends} times")
        return sentence

    def _is_alive(self, node_id: str) -> bool:
        """Whether a node outlived its worker. Ray may learn of its end half a minute later, so the node is asked."""
        for node in self._ray.nodes():
            if node["NodeID"] == node_id and node["Alive"]:
                return _silence(node["NodeManagerAddress"], node["NodeManagerPort"]) is None
        return False

    def _kill(self, seat: _Seat) -> None:
        with suppress(Exception):  # it may have ended, or the cluster with it
            self._ray.kill(seat.actor, no_restart=True)

    def _of(self, seat: _Seat, finished: Finished) -> Finished:
        """A finished task with its machine, and with its node as figures: a store knows by them what a cluster ran."""
        assert seat.node is not None
        figures = {**finished.figures, "node": seat.node.host, "per": self.per}
        return msgspec.structs.replace(
            finished, figures=figures, machine=seat.node.machine, versions=finished.versions or seat.node.versions
        )

    # ------------------------------------------------------------ what a person should know

    def _say(self, sentence: str) -> None:
        """Each sentence once."""
        if sentence not in self._said:
            self._said.add(sentence)
            self._on_note(sentence)

    def _say_versions(self) -> None:
        """Say which versions differ between nodes, or from those of the driver; and unlike machines."""
        own = Node(host="here", machine=inspect()).versions
        for name in own:
            seen: dict[str, list[str]] = {}
            for where, versions in [
                ("this process", own),
                *((s.name, s.node.versions) for s in self._ready() if s.node),
            ]:
                seen.setdefault(str(versions[name]), []).append(where)
            if len(seen) > 1:
                each = ", ".join(f"{version} on {_first(on)}" for version, on in seen.items())
                self._say(f"versions of {name} differ: {each}")
        kinds = len(self._machines)
        if kinds > 1:
            self._say(f"the nodes are of {kinds} kinds: tables are split by kind, and each has a part of the grid")


@contextmanager
def _own_signals() -> Iterator[None]:
    """Give this process' handler of SIGTERM back: Ray sets one of its own."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)


def _lost(sentence: str, began: datetime, wall_s: float) -> Finished:
    return Finished(outcome="crashed", figures={}, began=began, wall_s=wall_s, problem=sentence, is_lost=True)


def _check_address(address: str) -> None:
    """Raise MachineError where nobody answers, at once: Ray itself would try for minutes."""
    if address.startswith("ray://"):
        raise InputError(f"{address} is Ray's proxy for notebooks: run this on a node of the cluster, with auto")
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        if address == "auto":
            return
        raise InputError(f"{address!r} is no address of a Ray cluster; write it like 10.0.0.1:6379, or auto")
    problem = _silence(host.strip("[]"), int(port))
    if problem is not None:
        raise MachineError(f"no Ray cluster answers at {address}: {problem}")


def _silence(host: str, port: int) -> str | None:
    """Why nobody answers at a port; None where somebody does."""
    try:
        socket.create_connection((host, port), timeout=RULES.connect_s).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _keep_off_stdout() -> None:
    """Ray prints on stdout what it finds out about nodes. Lines of JSON go there, and lost nodes are said by us."""
    worker: Any = sys.modules.get("ray._private.worker")
    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda *_, **__: None


def _names(seats: Iterable[_Seat]) -> str:
    return _first([seat.name for seat in seats])


def _first(texts: Sequence[str], most: int = 5) -> str:
    texts = list(dict.fromkeys(texts))
    more = f" and {len(texts) - most:,} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _cause(error: BaseException) -> str:
    """Ray's own sentence about an actor's end, which is on a line of its own."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "died" in line or "killed" in line or "memory" in line]
    return (told or lines or [type(error).__name__])[-1][:300]
