"""Bodies that cost the webhook as much as a stranger could find, by family, and what answering one costs."""

import gc
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import combinations
from typing import Any

from gpushare import contract
from gpushare.annotation_table import CONTAINER_PREFIXES
from gpushare.errors import GpuShareError
from gpushare.namespace_policy import NamespacePolicy
from tests.support import reviews
from webhook.handler import AdmissionHandler
from webhook.main import GC_THRESHOLD
from webhook.mutation.framework_warnings import LAUNCHERS
from webhook.mutation.settings import Settings
from webhook.serving import review

FREE_SIZE = 64_000
FREE_SECONDS = 0.020
BYTES_OF_SECOND = 20_000_000
Json = dict[str, Any]
Family = Callable[[int], Json]
"""Makes the object of a review in which something stands so many times."""


class Known:
    """Stands for the caches: an opted-in namespace without maximum, and nobody's own claims."""

    def policy(self, _name: str) -> NamespacePolicy:
        return NamespacePolicy(host_paths=tuple(f"/data/{number}" for number in range(64)))

    def own(self, _namespace: str) -> frozenset[str]:
        return frozenset({"claim/own"})

    def others(self, _namespace: str) -> frozenset[str]:
        return frozenset({"claim/other"})


def settings() -> Settings:
    tolerations = ({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},)
    return Settings(tolerations=tolerations, across_nodes="spread")


RESPOND = AdmissionHandler(settings=settings(), namespaces=Known(), claims=Known())  # type: ignore[arg-type] # stand-ins


def pod(
    *, annotations: Json | None = None, metadata: Json | None = None, main: Json | None = None, **spec: Any
) -> Json:
    asks = {contract.MEMORY: "4Gi", **(annotations or {})}
    containers = [{"name": "main", "image": "a", **(main or {})}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", **(metadata or {}), "annotations": asks},
        "spec": {"containers": containers, **spec},
    }


def containers(each: Callable[[int], Json], **annotations: Any) -> Json:
    """Make a pod of 64 containers."""
    made = pod(annotations=annotations)
    made["spec"]["containers"] = [{"name": f"c{number}", "image": "a", **each(number)} for number in range(64)]
    return made


def close(number: int, length: int = 60) -> str:
    """A name that resembles the others, in the way in which difflib compares slowest."""
    return ("ab" * length)[: length - 4] + f"{number:04}"


def with_volumes(made: Json, volumes: list[Json]) -> Json:
    made["spec"]["volumes"] = volumes
    return made


FAMILIES: dict[str, Family] = {
    "long value of ours": lambda n: pod(annotations={contract.MEMORY: "1" * n}),
    "long zero": lambda n: pod(main={"resources": {"limits": {contract.WHOLE_GPU: "0" * n + "1"}}}),
    "long key of ours": lambda n: pod(annotations={contract.MEMORY_OF + "a" * n: "1Gi"}),
    "long unknown key of ours": lambda n: pod(annotations={contract.MEMORY + "ab" * (n // 2): "1Gi"}),
    "long foreign key": lambda n: pod(annotations={"\u00e9" * n: "1"}),
    "long model": lambda n: pod(annotations={contract.GPU_MODEL: "a," * (n // 2)}),
    "long container name": lambda n: pod(main={"name": "\u00e9" * n, "resources": {"limits": {contract.WHOLE_GPU: 1}}}),
    "long image": lambda n: pod(main={"image": "a." * (n // 2)}),
    "long host path": lambda n: pod(volumes=[{"name": "v", "hostPath": {"path": "/a/.." * (n // 5)}}]),
    "long mount path": lambda n: pod(main={"volumeMounts": [{"mountPath": "/a/.." * (n // 5)}]}),
    "long capability": lambda n: pod(main={"securityContext": {"capabilities": {"add": ["\u00df" * n]}}}),
    "long choice": lambda n: pod(annotations={contract.SAME_GPU: " " * n + "NO"}),
    "long capabilities of the driver": lambda n: pod(
        main={"env": [{"name": contract.NVIDIA_DRIVER_CAPABILITIES, "value": "a," * (n // 2)}]}
    ),
    "long node name": lambda n: pod(nodeName="\u00e9" * n),
    "long escapes": lambda n: pod(main={"command": ["\\" * n]}),
    "many quotes": lambda n: pod(main={"command": ['"' * n]}),
    "programs that start ranks, and words, in some containers": lambda n: sharing(n // 8000 + 1, launching(7800)),
    "programs that start ranks, and words, in all containers": lambda n: sharing(64, launching(n // 64)),
    "annotations of ours": lambda n: pod(annotations={f"{contract.MEMORY_OF}c{each}": "1Gi" for each in range(n)}),
    "annotations of ours, all known": lambda n: containers(
        lambda _: {}, **{prefix + f"c{each}": "1Gi" for prefix in CONTAINER_PREFIXES for each in range(64)}
    ),
    "annotations of others": lambda n: pod(annotations={f"k{each}": "" for each in range(n)}),
    "annotations of devices": lambda n: pod(annotations={f"cdi.k8s.i{each}": "" for each in range(n)}),
    "labels": lambda n: pod(metadata={"labels": {f"k{each}": "" for each in range(n)}}),
    "close container names": lambda n: {
        **containers(lambda each: {"name": close(each)}, **{contract.MEMORY_OF + close(5000): "1Gi"})
    },
    "close unknown keys": lambda n: {
        **containers(lambda each: {"name": close(each, 63)}, **{contract.MEMORY + "." + "aabb" * 15: "1Gi"})
    },
    "close longer names": lambda n: {
        **containers(lambda each: {"name": close(each, 63)}, **{contract.MEMORY_OF + "aabb" * 15: "1Gi"})
    },
    "many close keys": lambda n: containers(
        lambda each: {"name": close(each, 63)},
        **{contract.MEMORY_OF + "aabb" * 14 + str(each): "1Gi" for each in range(n)},
    ),
    "many close unknown keys": lambda n: containers(
        lambda each: {"name": close(each, 63)},
        **{contract.MEMORY + "." + "aabb" * 14 + str(each): "1Gi" for each in range(n)},
    ),
    "refused host paths, mounted everywhere": lambda n: with_volumes(
        containers(lambda _: {"volumeMounts": [{"name": str(each)} for each in range(min(1024, n // 64))]}),
        [{"name": str(each), "hostPath": {"path": "/dev"}} for each in range(min(1024, n))],
    ),
    "containers": lambda n: pod(ephemeralContainers=[{"name": f"e{each}"} for each in range(n)]),
    "empty containers": lambda n: pod(initContainers=[{} for _ in range(n)]),
    "sidecars of one name": lambda n: pod(initContainers=[{"name": contract.SIDECAR} for _ in range(n)]),
    "variables": lambda n: containers(lambda _: {"env": [{"name": f"v{each}"} for each in range(min(1000, n // 64))]}),
    "reserved variables": lambda n: containers(
        lambda _: {"env": [{"name": contract.NVIDIA_DRIVER_CAPABILITIES} for each in range(min(1011, n // 64))]}
    ),
    "too many variables": lambda n: pod(main={"env": [{"name": "v"} for _ in range(n)]}),
    "volumes": lambda n: pod(volumes=[{"name": "v"} for _ in range(n)]),
    "host paths": lambda n: pod(volumes=[{"hostPath": {"path": "/data/63"}} for _ in range(n)]),
    "mounts": lambda n: pod(main={"volumeMounts": [{"mountPath": "/a"} for _ in range(n)]}),
    "mounts in all containers": lambda n: containers(
        lambda _: {"volumeMounts": [{"mountPath": "/a"} for _ in range(n // 64)]}
    ),
    "capabilities": lambda n: pod(main={"securityContext": {"capabilities": {"add": ["CAP_A"] * n}}}),
    "resource claims": lambda n: pod(resourceClaims=[{"name": f"c{each}"} for each in range(n)]),
    "own claims": lambda n: pod(resourceClaims=[{"name": f"c{each}", "resourceClaimName": "own"} for each in range(n)]),
    "used claims": lambda n: pod(
        main={"resources": {"claims": [{"name": f"c{each}"} for each in range(n)]}},
        resourceClaims=[{"name": "c", "resourceClaimName": "own"}],
    ),
    "limits": lambda n: pod(main={"resources": {"limits": {f"k{each}": "1" for each in range(n)}}}),
    "limits of nothing": lambda n: pod(
        main={"resources": {"limits": {f"nvidia.com/gpu.{each}": "0e-99" for each in range(n)}}}
    ),
    "limits of nothing in all containers": lambda n: containers(
        lambda _: {"resources": {"limits": {f"nvidia.com/gpu.{each}": "0" for each in range(n // 64)}}}
    ),
    "tolerations": lambda n: pod(tolerations=[{"key": f"k{each}"} for each in range(n)]),
    "preferences": lambda n: pod(
        affinity={
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [{"podAffinityTerm": {}} for _ in range(n)]
            }
        }
    ),
    "spread constraints": lambda n: pod(topologySpreadConstraints=[{"a": 1} for _ in range(n)]),
    "empty objects": lambda n: pod(unknown=[{} for _ in range(n)]),
    "empty lists": lambda n: {"metadata": {}, "unknown": [[] for _ in range(n)]},
    "nested lists": lambda n: {"metadata": {}, "unknown": [nested(50) for _ in range(n // 50)]},
    "small objects": lambda n: pod(unknown=[{"a": 1} for _ in range(n)]),
    "integers": lambda n: pod(unknown=[10**19 for _ in range(n)]),
    "floats": lambda n: pod(unknown=[1.7976931348623157e308 for _ in range(n)]),
    "keys": lambda n: pod(unknown={f"k{each}": None for each in range(n)}),
    "strings": lambda n: pod(unknown=["" for _ in range(n)]),
    "keys beside small objects and nested lists": lambda n: pod(  # the worst that a random search has found
        metadata={"labels": {f"k{each}": "" for each in range(n)}},
        unknown=[{"a": 1} for _ in range(n // 15)] + [nested(50) for _ in range(n // 800)],
    ),
}
"""The size asked for is a number of entries or of characters, whichever the family counts."""


def launching(size: int) -> Json:
    """A container whose command line calls each launcher, and has as many words as it can."""
    text = " ".join(word for each in LAUNCHERS for word in each.words)
    return {"command": [(text + " a" * size)[: max(size, len(text))]]}


def sharing(many: int, main: Json) -> Json:
    """So many containers with a share each."""
    made = containers(lambda _: main, **{f"{contract.MEMORY_OF}c{each}": "512Mi" for each in range(many)})
    del made["metadata"]["annotations"][contract.MEMORY]
    return {**made, "spec": {**made["spec"], "containers": made["spec"]["containers"][:many]}}


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


def encoded(made: Json, **request: Any) -> bytes:
    return json.dumps(reviews.review(made, **request), separators=(",", ":"), ensure_ascii=False).encode()


def largest(family: Family, room: int, **request: Any) -> bytes:
    """Make a body of a family that fills the room, as far as the webhook reads so many objects."""
    small, larger = encoded(family(1024), **request), encoded(family(2048), **request)
    growth, nodes = (len(larger) - len(small)) / 1024, (objects_of(larger) - objects_of(small)) / 1024
    by_bytes = (room - len(small)) / growth if growth else 0
    by_nodes = (review.most_nodes(room) - objects_of(small)) / nodes if nodes else by_bytes
    number = 1024 + max(0, int(0.97 * min(by_bytes, by_nodes)))
    body = encoded(family(number), **request)
    while len(body) > room or objects_of(body) > review.most_nodes(len(body)):
        number = number * 9 // 10
        body = encoded(family(number), **request)
    return body


def objects_of(body: bytes) -> int:
    return body.count(b"{") + body.count(b"[")


def raw(pattern: str) -> bytes:
    """Put a text into a body that no encoder writes."""
    shell = encoded(pod(unknown="@")).split(b'"@"')
    return shell[0] + pattern.encode() + shell[1]


def written(room: int) -> Iterator[tuple[str, bytes]]:
    """Bodies that are not what a JSON encoder makes."""
    room -= 2000
    yield "duplicate keys", raw("{" + ",".join(['"a":1'] * (room // 6)) + "}")
    small = "{" + ",".join(f'"{number:03}":1' for number in range(999)) + ',"998":1}'
    yield "one duplicate key among 1000", raw(small)
    yield "long number", raw("1" * room)
    yield "long fraction", raw("0." + "1" * room)
    yield "long exponent", raw("1e" + "0" * room)
    yield "many exponents", raw("[" + ",".join(["1e-9999"] * (room // 8)) + "]")
    yield "fractions of 700 digits", raw("[" + ",".join(["0." + "1" * 700] * (room // 703)) + "]")
    yield "open brackets", b"[" * room
    yield "deep to the limit", raw("[" + ",".join(["[" * 55 + "]" * 55] * (room // 111)) + "]")
    yield "escaped quotes", raw('"' + '\\"' * (room // 2) + '"')
    yield "escapes", raw('"' + "\\u00e9" * (room // 6) + '"')
    yield "lone surrogates", raw('"' + "\\ud800\\ud8zz" * (room // 12) + '"')
    yield "surrogate pairs", raw('"' + "\\ud83d\\ude00" * (room // 12) + '"')
    yield "spaces", raw(" " * room + "1")
    yield "no Unicode", b'"' + b"\xff" * room


def bodies(room: int) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Name each body, and say how it is made: all of them together do not fit into memory."""
    yield from ((name, partial(bytes, body)) for name, body in written(room))
    yield from ((name, partial(largest, family, room)) for name, family in FAMILIES.items())
    for name in ("containers", "mounts", "limits of nothing", "sidecars of one name"):
        debug = {"operation": "UPDATE", "subResource": "ephemeralcontainers"}
        yield f"{name}, to debug", partial(largest, FAMILIES[name], room, **debug)


def pairs(room: int) -> Iterator[tuple[str, Callable[[], bytes]]]:
    for one, other in combinations(FAMILIES, 2):
        yield f"{one} + {other}", partial(largest, joined(FAMILIES[one], FAMILIES[other]), room)


def joined(one: Family, other: Family) -> Family:
    """Half of each: annotations and fields of both, the first one's containers."""

    def made(number: int) -> Json:
        first, second = one(number // 2), other(number // 2)
        annotations = {**second["metadata"].get("annotations", {}), **first["metadata"].get("annotations", {})}
        metadata = {**second["metadata"], **first["metadata"], "annotations": annotations}
        spec = {**second.get("spec", {}), **first.get("spec", {})}
        return {**second, **first, "metadata": metadata, "spec": spec}

    return made


def allowed(size: int) -> float:
    """Return the CPU seconds that a body of so many bytes may cost: 20 ms, and 1 ms for each 20 kB beyond 64 kB."""
    return FREE_SECONDS + max(0, size - FREE_SIZE) / BYTES_OF_SECOND


def respond(body: bytes) -> None:
    """Answer a body as the webhook does; a refusal is an answer."""
    with suppress(GpuShareError):
        RESPOND(review.parse(body))


def cost(body: bytes, runs: int = 1) -> float:
    """Return the CPU seconds of the cheapest of some answers."""
    return min(_once(body) for _ in range(runs))


@contextmanager
def collecting() -> Iterator[None]:
    """Collect garbage as seldom as the webhook."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def _once(body: bytes) -> float:
    started = time.thread_time()
    respond(body)
    return time.thread_time() - started
