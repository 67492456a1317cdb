"""The webhook: admission of pods with a share, and the controller that creates their claim templates."""
