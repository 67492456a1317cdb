"""Mutation: the pure rewriting and validation of a pod; no I/O.

Reading order: ``mutate`` (the way of a pod), ``podview`` (what it is read into), ``share_request`` (what it asks for),
``validation`` (what is refused), ``resourceclaims`` (its claim), ``rewrite`` (the new pod), ``json_patch`` (the patch).
``demand`` reads stored pods again, before a claim template is made for them.

A sidecar is any container of ``Kind.SIDECAR`` (an init container with ``restartPolicy: Always``). Ours is the one that
``sidecar_validation.ours`` finds by its image; where it stands, the pod was rewritten before.
"""
