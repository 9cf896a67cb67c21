"""The gateway's own code on virtual time, in front of the emulated engines' clockwork: an hour in seconds, without sockets."""
