"""The vocabulary that the webhook, the node agent and the command line share.

Everything here except ``gpushare.kube_client`` and ``gpushare_cli`` is pure: plain data in, plain data out, standard
library only. Nothing here may import another part of the product (held by import-linter).
"""
