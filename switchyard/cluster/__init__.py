"""A cluster of machines that run engines: what is on it, whether it fits, how fast it will be. Pure functions; no I/O."""
