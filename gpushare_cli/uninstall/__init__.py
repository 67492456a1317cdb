"""``gpu-share uninstall``: what the chart's hooks run around the removal of a release."""
