"""DRA on the node: prepare and unprepare claims for the kubelet, write CDI files, keep the checkpoint."""
