import ast

from tests import house_wiring
from tests.house_wiring import assigned, callable_parameters, wiring

PART = "class Part:\n    def __init__(self) -> None:\n        self.sink = None\n"


def breaches(text: str, path: str = "enforcer/b.py") -> list[str]:
    return list(assigned({"enforcer/a.py": ast.parse(PART), path: ast.parse(text)}))


def test_an_attribute_of_a_part_is_not_assigned_from_outside() -> None:
    said = "assigns part.sink from outside; make it an argument of the constructor"
    for line in ("part.sink = 1", "part.sink += 1", "a, part.sink = 1, 2", "part.sink: int = 1", "del part.sink"):
        assert breaches(f"def f(part: Part) -> None:\n    {line}\n") == [f"enforcer/b.py:2: {said}"], line
    inner = "def f(self) -> None:\n    self.part.sink = 1\n"
    assert breaches(inner) == [f"enforcer/b.py:2: {said.replace('part.sink', 'self.part.sink')}"]


def test_its_own_module_and_who_has_just_made_an_object_may_and_so_may_anybody_with_what_is_not_ours() -> None:
    assert breaches(PART + "def f(part: Part) -> None:\n    part.sink = 1\n") == []
    assert breaches("def f() -> None:\n    options = parse()\n    options.sink = 1\n") == []
    assert breaches("def f(call: object) -> None:\n    call.argtypes = []\n") == []
    assert breaches("class A:\n    def f(self) -> None:\n        self.other = 1\n") == []
    assert wiring({"webhook/b.py": "def f(part: Part) -> None:\n    part.sink = 1\n", "webhook/a.py": PART}) == []


def test_callables_of_constructors_are_counted_with_their_aliases_and_protocols_of_one_method() -> None:
    text = """
Rule = Callable[[int], int]
class Sink(Protocol):
    def notify(self) -> None: ...
class Source(Protocol):
    def one(self) -> None: ...
    def two(self) -> None: ...
class A:
    def __init__(self, a: Callable[[], int] | None, b: Rule, c: int, *, d: list[Sink], e: Source) -> None: ...
    def f(self, g: Callable[[], int]) -> None: ...
@dataclass(frozen=True)
class B:
    h: Sink
    i: int
"""
    assert list(callable_parameters({"enforcer/a.py": ast.parse(text)})) == ["A.a", "A.b", "A.d", "B.h"]


def test_more_of_them_than_the_limit_are_a_breach() -> None:
    found = ", ".join(f"a{number}: Callable[[], int]" for number in range(house_wiring.MAX_CALLABLES + 1))
    (breach,) = wiring({"enforcer/a.py": f"class A:\n    def __init__(self, {found}) -> None: ...\n"})
    assert f"{house_wiring.MAX_CALLABLES + 1} constructor parameters are callables" in breach
