"""The simulated memory under the name that earlier handouts gave it."""

from labkit.simulated_memory import *  # noqa: F403
