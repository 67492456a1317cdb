"""The real nodes of a site."""

from collections.abc import Iterator
from dataclasses import replace

from tests.e2e.site import Site
from tests.testbed.cluster.node import Node


def real(site: Site) -> Node:
    """Return the node of a site, which is no virtual one."""
    assert isinstance(site.node, Node)
    return site.node


def each_node(site: Site) -> Iterator[Site]:
    """Return the site once for each node of its cluster, by name."""
    plane = site.bed.plane
    for home in sorted(plane.root.glob("nodes/*")):
        node = Node.load(plane, home.name)
        if node is not None:
            yield replace(site, node=node)
