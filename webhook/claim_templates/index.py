"""Which claim templates are missing and which are left over, kept up to date change by change. Pure.

A change costs the same however many pods there are: only the template that it touches is looked at again.
"""

import json
from collections import OrderedDict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from webhook.claim_templates.references import Key, Object, TemplateRecord, TemplateReference
from webhook.mutation.demand import Demand


@dataclass(slots=True)
class _Use:
    """One template that pods name: by how many, by how many of those its content is given, and that as JSON."""

    key: Key
    named: int = 0
    given: int = 0
    content: bytes = b""
    content_key: int = 0
    demands: set[Demand] = field(default_factory=set)


class TemplateIndex:
    """The objects that the watches delivered so far, and what follows from them.

    Of a pod no more is kept than which template it names; the template's content is kept once, for all its pods.
    ``now`` is in seconds on any clock that does not jump.
    """

    def __init__(self) -> None:
        self.templates: dict[Key, TemplateRecord] = {}
        self._pods: dict[str, _Use] = {}
        self._forged: set[str] = set()
        self._uses: dict[Key, _Use] = {}
        self._missing: dict[str, dict[str, None]] = {}
        self._taken: set[Key] = set()
        self._foreign: set[Key] = set()
        self._unused = OrderedDict[Key, float]()
        self._left_over: set[Key] = set()
        self._touched: dict[Key, None] = {}

    # Deliveries of the watches

    def put_pod(self, uid: str, item: TemplateReference | None, now: float) -> None:
        """Take in what a pod names, ``None`` where it names nothing any more."""
        known = self._pods.get(uid)
        if known is not None and item is not None and (known.key, uid not in self._forged) == (item.key, item.sound):
            return
        if known is not None:
            self._leave(uid, known, now)
        if item is not None:
            self._join(uid, item, now)

    def only_pods(self, uids: Collection[str], now: float) -> None:
        """Forget all other pods."""
        for uid in [each for each in self._pods if each not in uids]:
            self.put_pod(uid, None, now)

    def put_template(self, item: TemplateRecord, now: float) -> None:
        """Take in a template that is there."""
        known = self.templates.get(item.key)
        if known is not None and known.uid != item.uid:
            self._unused.pop(item.key, None)
            self._left_over.discard(item.key)
        self.templates[item.key] = item
        self._look(item.key, now)

    def drop_template(self, key: Key, now: float) -> None:
        """Take in that a template is gone."""
        if self.templates.pop(key, None) is not None:
            self._look(key, now)

    def only_templates(self, keys: Collection[Key], now: float) -> None:
        """Forget all other templates."""
        for key in [each for each in self.templates if each not in keys]:
            self.drop_template(key, now)

    def count_from(self, now: float) -> None:
        """Let every unused template's time begin now: before, it was not known who uses it."""
        self._unused = OrderedDict.fromkeys(self._unused, now)

    def touch(self, namespace: str | None = None) -> None:
        """Have the missing templates of a namespace looked at again, or those of all."""
        for each in [namespace] if namespace is not None else list(self._missing):
            self._touched.update(dict.fromkeys((each, name) for name in self._missing.get(each, ())))

    # What follows

    def named_by(self, uid: str) -> Key | None:
        """The template a pod is known to name."""
        known = self._pods.get(uid)
        return known.key if known is not None else None

    def touched(self) -> Iterator[Key]:
        """Yield each template that something changed about since the last time; each once."""
        touched, self._touched = self._touched, {}
        yield from touched

    def is_missing(self, key: Key) -> bool:
        """Whether a pod's content gives it and it is not there."""
        return key[1] in self._missing.get(key[0], ())

    def exists(self, key: Key | None) -> bool:
        """Whether a template of that name is there."""
        return key in self.templates

    def is_taken(self, key: Key) -> bool:
        """Whether what stands under the name is not what the pods that name it ask for."""
        return key in self._taken

    def is_left_over(self, key: Key) -> bool:
        """Whether it is to be deleted: unused for the time that ``expire`` got, and still."""
        return key in self._left_over

    @property
    def ours(self) -> int:
        """How many templates with our label there are."""
        return len(self.templates) - len(self._foreign)

    @property
    def unused(self) -> int:
        """How many templates of ours no pod names."""
        return len(self._unused)

    @property
    def taken(self) -> int:
        """How many names are taken by other content."""
        return len(self._taken)

    def content(self, key: Key) -> Object:
        """The template as its pods give it."""
        content: Object = json.loads(self._uses[key].content)
        return content

    def demands(self, key: Key) -> frozenset[Demand]:
        """What pods that name a template ask for, each kind once; some of these pods may be gone."""
        use = self._uses.get(key)
        return frozenset(use.demands if use is not None else ())

    def expire(self, until: float) -> Iterator[Key]:
        """Yield templates that are unused since ``until`` or earlier; each once, from then on they are left over."""
        # They stand in the order in which they came out of use.
        while self._unused and (first := next(iter(self._unused.items())))[1] <= until:
            del self._unused[first[0]]
            self._left_over.add(first[0])
            yield first[0]

    # How it is kept

    def _join(self, uid: str, item: TemplateReference, now: float) -> None:
        use = self._uses.setdefault(item.key, _Use(item.key))
        use.named += 1
        if item.body is None:
            self._forged.add(uid)
        else:
            use.given += 1
            use.content = use.content or json.dumps(item.body, separators=(",", ":")).encode()
            use.content_key = item.content_key
            use.demands |= {item.demand} if item.demand else set()
        self._pods[uid] = use
        self._look(item.key, now)

    def _leave(self, uid: str, use: _Use, now: float) -> None:
        del self._pods[uid]
        use.named -= 1
        use.given -= uid not in self._forged
        self._forged.discard(uid)
        if not use.named:
            del self._uses[use.key]
        self._look(use.key, now)

    def _look(self, key: Key, now: float) -> None:
        """Compute again what to do about one template."""
        use, there = self._uses.get(key), self.templates.get(key)
        given = use is not None and use.given > 0
        self._set_missing(key, missing=given and there is None)
        wrong = use is not None and there is not None and given and there.content_key != use.content_key
        (self._taken.add if wrong else self._taken.discard)(key)
        (self._foreign.add if there is not None and not there.ours else self._foreign.discard)(key)
        if there is None or not there.ours or use is not None:
            self._unused.pop(key, None)
            self._left_over.discard(key)
        elif key not in self._left_over:
            self._unused.setdefault(key, now)
        self._touched[key] = None

    def _set_missing(self, key: Key, *, missing: bool) -> None:
        namespace, name = key
        if missing:
            self._missing.setdefault(namespace, {})[name] = None
        elif namespace in self._missing:
            self._missing[namespace].pop(name, None)
            if not self._missing[namespace]:
                del self._missing[namespace]
