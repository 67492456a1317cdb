"""Attribution: which container owns each GPU process, from cgroups, procfs and pidfds."""
