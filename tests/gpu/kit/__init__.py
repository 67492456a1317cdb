"""What the experiments stand on: backends, clients, the runner, the report."""
