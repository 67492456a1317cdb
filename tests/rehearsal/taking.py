"""Takes one step under churn, waits until all holds again, and says what tenants noticed."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from gpushare.errors import ClusterError
from tests.e2e import pods
from tests.e2e.site import Site
from tests.rehearsal.acts import wrong
from tests.rehearsal.api import Api
from tests.rehearsal.choice import randomness
from tests.rehearsal.journal import Entry, Noticed
from tests.rehearsal.looking import look
from tests.rehearsal.rules import restarts, violations
from tests.rehearsal.sampling import Machine, Place, Sampler, Seen
from tests.rehearsal.state import BURST, JOB, PLAIN, STEADY, Object, State, kind, uid
from tests.rehearsal.steps import Step
from tests.rehearsal.tenants import Churn, create, drop, pinned, replace, settle
from tests.rehearsal.where import each_node, real
from tests.support.patience import patient
from tests.testbed.cluster.errors import BedError

HEALED: Final = 120.0
PAUSE: Final = 2.0
CHURNING: Final = 8.0
"""Seconds of churn before and after a step."""
REFUSED: Final = "a sharing pod is refused"
SHOWN: Final = 2000
"""Characters of what an act that failed said."""


class Healing(NamedTuple):
    """The last state, what does not hold in it, and what was the last to hold and after how many seconds."""

    state: State | None
    found: list[str]
    awaited: tuple[str, float]


@dataclass(frozen=True, slots=True)
class Stage:
    """A site with tenants on it, and who looks at them."""

    site: Site
    place: Place
    sampler: Sampler

    def take(self, step: Step, seed: int, number: int) -> Entry:
        """Take one step on a node that chance chooses; what it had to hold and did not is in the entry."""
        rng, began = randomness(seed, number), time.monotonic()
        drop(self.place.api, self.place.namespace, JOB)
        self.sampler.begin()
        before = self._first()
        if not step.ready(before):
            return Entry(seed=seed, number=number, name=f"{step.name} (not possible)", seconds=0.0)
        with Churn(self.place.api, self.place.namespace, rng, f"s{seed}-{number}"):
            time.sleep(CHURNING)
            acted = time.monotonic()
            red, failed = self._act(step, rng)
            time.sleep(CHURNING)
        drop(self.place.api, self.place.namespace, PLAIN, BURST)
        probes = [pinned(f"s{seed}-{number}-after", each.name, rng) for each in self.place.machines]
        now, found, awaited = self._healed(step, before, probes, red=red)
        ended, seen = time.monotonic(), self.sampler.seen
        if step.allowed.restarts:
            replace(self.site, self.place.api, self.place.namespace, rng)
        return Entry(
            seed=seed, number=number, name=step.name, seconds=round(ended - began, 1),
            healed=None if found else round(ended - acted, 1),
            noticed=noticed(before, now, seen), awaited=awaited, violations=(*failed, *found),
        )  # fmt: skip

    def _act(self, step: Step, rng: Random) -> tuple[bool | None, list[str]]:
        """Do it; returns what the check said meanwhile, and why it could not be done."""
        try:
            return step.act(rng.choice(list(each_node(self.site))), self.place.namespace, rng), []
        except (AssertionError, BedError, ClusterError, subprocess.SubprocessError) as error:
            return None, [f"the step failed: {str(error)[:SHOWN]}"]

    def _healed(self, step: Step, before: State, probes: list[Object], *, red: bool | None) -> Healing:
        """Wait until all holds and one more share has run on each node, or the time is over."""
        now, found, awaited = None, ["nobody looked"], ("", 0.0)
        began = time.monotonic()
        while found and time.monotonic() < began + patient(HEALED):
            try:
                probes = [each for each in probes if not create(self.place.api, self.place.namespace, each)]
                now = self._look(red=red)
                found = [REFUSED] if probes else violations(before, now, step.allowed)
                if not found:
                    now = self._look(red=red, check=wrong(self.site))
                    found = violations(before, now, step.allowed)
            except LookupError as error:
                found = [f"the API server does not answer: {error}"]
            if found:
                awaited = found[0], round(time.monotonic() - began, 1)
                time.sleep(PAUSE)
        return Healing(now, found, awaited)

    def _first(self) -> State:
        """Look as soon as the API server answers."""
        until = time.monotonic() + patient(HEALED)
        while True:
            try:
                return self._look()
            except LookupError:
                if time.monotonic() > until:
                    raise
                time.sleep(PAUSE)

    def _look(self, *, red: bool | None = None, check: tuple[str, ...] | None = None) -> State:
        return look(self.place, self.sampler.seen, red=red, check=check)


def noticed(before: State, now: State | None, seen: Seen) -> Noticed:
    """Say what tenants noticed between two states; ``None``: there was no other."""
    steady = {uid(pod): pod for pod in before.pods if kind(pod) == STEADY}
    found = {uid(pod): pod for pod in now.pods} if now else {}
    fresh = [set(found) - set(before.daemons.get(place, ())) for place, found in seen.daemons.items()]
    return Noticed(
        refused=round(seen.refused, 1), unwatched=round(seen.unwatched, 1), waited=round(seen.waited, 1),
        restarts=sum(restarts(found[each]) - restarts(pod) for each, pod in steady.items() if each in found),
        lost=len(steady.keys() - found.keys()) if now else 0, daemons=sum(map(len, fresh)),
    )  # fmt: skip


@contextmanager
def staged(site: Site, seed: int) -> Iterator[Stage]:
    """Bring tenants onto a site."""
    place = place_of(site, settle(site, Random(seed)))
    with Sampler(place) as sampler:
        yield Stage(site, place, sampler)


def place_of(site: Site, namespace: str) -> Place:
    """Return where the checker looks."""
    every = tuple(
        Machine(name=node.name, home=node.home, cgroup=node.cgroup, holder=node.holder.pid)
        for node in map(real, each_node(site))
    )
    return Place(
        api=Api.of(Path(site.bed.plane.kubeconfig())), machines=every, namespace=namespace,
        probe=pods.pod("probe", "hold", "128Mi", memory="512Mi"), deployment=len(every) > 1,
    )  # fmt: skip
