"""The kit that asks real hardware: experiments on one NVIDIA GPU, and the recordings that keep the fakes honest."""
