"""The kinds of faults that the soak injects: what each does, and what must come of it."""

from __future__ import annotations

import random
import signal
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

from rlx.testing.faults import SURVIVABLE, Fault, FaultKind, FaultPlan, FaultyTransport
from rlx.testing.links import SURVIVABLE_LINK_FAULTS, LinkFault, LinkFaultKind
from rlx.testing.meshes import make_mesh
from rlx.testing.outcomes import Failure
from rlx.testing.processes import RankProcesses
from rlx.testing.soak import bodies
from rlx.testing.soak.trials import LONGEST_WAIT_S, Later, Trial
from rlx.testing.soak.worlds import HEARTBEAT_S, SIZES, Proxied, Worlds, close_all, watch

# The faulty rank takes all to be well, and may be the first to say that one of the others has left.
_UNSEEN_BY_THE_SENDER = (FaultKind.WRONG_SIZE, FaultKind.DUPLICATE, FaultKind.DROP)
_LATEST_S = 0.03
_PASSING_S = 0.005
_SHORT_DEADLINE_S = 1.0
_LONG_DEADLINE_S = 20.0


@dataclass(frozen=True)
class Kind(ABC):
    """One kind of fault. `weight` is how many of about 10,000 faults are of it."""

    name: str
    weight: float

    def prepare(self, worlds: Worlds) -> None:
        """Make what several trials share."""
        worlds.prepare()

    @abstractmethod
    def run(self, trial: Trial, source: random.Random, worlds: Worlds) -> None:
        """Make a world, let the fault happen in it, and note what came of it."""


@dataclass(frozen=True)
class TransportKind(Kind):
    """A fault in the transport of one rank, over memory or TCP."""

    fault: FaultKind

    def run(self, trial: Trial, source: random.Random, worlds: Worlds) -> None:
        form, size = source.choice(("memory", "tcp")), source.choice(SIZES)
        rank, seed = source.randrange(size), source.getrandbits(32)
        lasts = self.fault in SURVIVABLE
        plan = FaultPlan.draw(seed, rank, kinds=[self.fault], faults=1, within=12, longest_s=0.005)
        if self.fault is FaultKind.DROP and source.random() < 0.5:
            plan = replace(plan, faults=(replace(plan.faults[0], count=10**6),))
        trial.what = f"{size} ranks over {form}; {plan}"
        mesh = worlds.plain(form, size) if lasts else make_mesh(form, size)
        wrapped = [
            FaultyTransport(one, plan if one.rank == rank else FaultPlan(one.rank, seed))
            for one in mesh
        ]
        faulty, last = wrapped[rank], _last_exchange(plan.faults)

        def is_over() -> bool:
            return lasts and faulty.exchanges >= last

        deadline_s = _SHORT_DEADLINE_S if self.fault is FaultKind.DROP else _LONG_DEADLINE_S
        outcomes = watch(wrapped, lambda group: bodies.work(group, seed, is_over), deadline_s)
        if lasts:
            trial.must_finish(outcomes)
            if not trial.is_good:
                worlds.discard(mesh)
            return
        close_all(wrapped)
        others = [one for place, one in enumerate(outcomes) if place != rank]
        since_s = faulty.happened[0].at_s if faulty.happened else None
        trial.must_name(
            others,
            lambda failure: _blames(failure, rank),
            since_s,
            all_name=self.fault not in _UNSEEN_BY_THE_SENDER,
        )


def _blames(failure: Failure, rank: int) -> bool:
    """Whether a rank is named, be it as the one that failed by waiting for others in vain."""
    return rank in failure.named or f"rank {rank} failed: " in failure.message


def _last_exchange(faults: tuple[Fault, ...]) -> int:
    return max(fault.exchange + fault.count for fault in faults)


@dataclass(frozen=True)
class SlowLink(Kind):
    """A link that is late, slow or in pieces, and goes on."""

    fault: LinkFaultKind

    def run(self, trial: Trial, source: random.Random, worlds: Worlds) -> None:
        size, seed = source.choice(SIZES), source.getrandbits(32)
        world = worlds.proxied(size)
        link = source.choice(list(world.routes))
        fault = LinkFault.draw(seed, kinds=[self.fault], within_bytes=5000, longest_s=0.01)
        trial.what = f"{size} ranks, link {link}: {fault}"
        route = world.routes[link]
        route.inject(fault)

        def is_over() -> bool:
            since_s = route.happened_s
            return since_s is not None and time.monotonic() > since_s + _PASSING_S

        outcomes = watch(world.transports, lambda group: bodies.work(group, seed, is_over))
        trial.must_finish(outcomes)
        if trial.is_good:
            route.heal()
        else:
            worlds.discard(world)


@dataclass(frozen=True)
class BrokenLink(Kind):
    """A link that ends, falls silent or changes bytes; or, with `host`, all links of a rank."""

    fault: LinkFaultKind
    host: bool = False

    def run(self, trial: Trial, source: random.Random, worlds: Worlds) -> None:
        size, seed = source.choice(SIZES), source.getrandbits(32)
        world = Proxied(size, HEARTBEAT_S)
        try:
            world.warm_up()
            self._break(trial, source, world, size, seed)
        finally:
            world.close()

    def _break(
        self, trial: Trial, source: random.Random, world: Proxied, size: int, seed: int
    ) -> None:
        link = source.choice(list(world.routes))
        victim = source.choice(link)
        fault = LinkFault.draw(seed, kinds=[self.fault], within_bytes=4000)
        if self.fault in (LinkFaultKind.CUT, LinkFaultKind.RESET):
            fault = replace(fault, connection=source.choice((None, None, 0, 1)))
        routes = [world.routes[link]]
        if self.host:
            routes, fault = world.links_of(victim), replace(fault, after_bytes=0)
        delay_s = source.uniform(0, _LATEST_S)
        of_bytes = self.fault in (LinkFaultKind.CORRUPT, LinkFaultKind.DUPLICATE)
        where = f"all links of rank {victim}" if self.host else f"link {link}"
        trial.what = f"{size} ranks, {where}, after {delay_s:.3f} s: {fault}"
        right = {victim} if self.host else set(link)
        if self.fault is LinkFaultKind.HALF_OPEN:
            right = {min(link) if fault.backward else max(link)}

        def inject() -> None:
            for route in routes:
                route.inject(fault)

        with Later(delay_s, inject):
            outcomes = watch(
                world.transports,
                bodies.barriers if of_bytes else lambda group: bodies.work(group, seed, _never),
                _SHORT_DEADLINE_S if of_bytes else _LONG_DEADLINE_S,
            )
        if self.host:
            outcomes = [one for place, one in enumerate(outcomes) if place != victim]
        times_s = [route.happened_s for route in routes]
        since_s = max((one for one in times_s if one is not None), default=None)
        if of_bytes and since_s is None:
            trial.must_finish(outcomes)
            return
        trial.must_name(
            outcomes,
            lambda failure: bool(right & set(failure.named)),
            since_s,
            all_fail=not of_bytes,
        )


def _never() -> bool:
    return False


@dataclass(frozen=True)
class DyingProcess(Kind):
    """A rank in a process of its own that is killed or frozen, or ends in its own way."""

    how: str

    def run(self, trial: Trial, source: random.Random, worlds: Worlds) -> None:
        size, seed = source.choice((2, 2, 3)), source.getrandbits(31)
        victim, delay_s = source.randrange(size), source.uniform(0, 0.05)
        trial.what = f"{size} processes, rank {victim}: {self.name}"
        killed = self.how in ("kill", "freeze")
        arguments = [seed, victim, "wait" if killed else self.how]
        with RankProcesses(
            size,
            "rlx.testing.soak.bodies:end_in_the_middle",
            arguments,
            heartbeat_s=HEARTBEAT_S if self.how == "freeze" else 10.0,
            deadline_s=_LONG_DEADLINE_S,
        ) as ranks:
            ranks.wait_for_line(victim, "inside", deadline_s=LONGEST_WAIT_S)
            since_s: float | None = None
            if killed:
                time.sleep(delay_s)
                number = signal.SIGKILL if self.how == "kill" else signal.SIGSTOP
                since_s = ranks.kill(victim, number)
            outcomes = ranks.wait(deadline_s=LONGEST_WAIT_S, besides=[victim])
            if not killed:
                since_s = float(ranks.printed(victim).split()[-1])
        others = [None if one.status is None else one for one in outcomes if one.rank != victim]
        trial.must_name(others, lambda failure: failure.named == (victim,), since_s)


KINDS: tuple[Kind, ...] = (
    TransportKind("transport: delay", 1500, FaultKind.DELAY),
    TransportKind("transport: reorder", 1500, FaultKind.REORDER),
    TransportKind("transport: throttle", 1000, FaultKind.THROTTLE),
    TransportKind("transport: wrong stamp", 500, FaultKind.WRONG_STAMP),
    TransportKind("transport: wrong size", 350, FaultKind.WRONG_SIZE),
    TransportKind("transport: duplicate", 350, FaultKind.DUPLICATE),
    TransportKind("transport: drop", 300, FaultKind.DROP),
    TransportKind("transport: abort", 500, FaultKind.ABORT),
    TransportKind("transport: close", 500, FaultKind.CLOSE),
    SlowLink("link: delay", 700, LinkFaultKind.DELAY),
    SlowLink("link: throttle", 500, LinkFaultKind.THROTTLE),
    SlowLink("link: fragment", 700, LinkFaultKind.FRAGMENT),
    BrokenLink("link: cut (FIN)", 250, LinkFaultKind.CUT),
    BrokenLink("link: reset (RST)", 250, LinkFaultKind.RESET),
    BrokenLink("link: half-open", 150, LinkFaultKind.HALF_OPEN),
    BrokenLink("link: silent", 100, LinkFaultKind.VANISH),
    BrokenLink("host: vanished", 100, LinkFaultKind.VANISH, host=True),
    BrokenLink("link: a byte of framing changed", 150, LinkFaultKind.CORRUPT),
    BrokenLink("link: bytes of framing twice", 150, LinkFaultKind.DUPLICATE),
    DyingProcess("process: SIGKILL", 150, "kill"),
    DyingProcess("process: crash in C", 40, "crash"),
    DyingProcess("process: abort()", 30, "abort"),
    DyingProcess("process: _exit", 60, "exit"),
    DyingProcess("process: SIGSTOP", 60, "freeze"),
    DyingProcess("process: exception", 60, "raise"),
    DyingProcess("process: early return", 50, "return"),
)
"""Every kind of fault. A soak draws one of them for each trial, by their weights."""

assert set(SURVIVABLE_LINK_FAULTS) == {one.fault for one in KINDS if isinstance(one, SlowLink)}
