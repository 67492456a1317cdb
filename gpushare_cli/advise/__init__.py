"""``gpu-share advise``: how much memory each workload should ask for, by the most that it used."""
