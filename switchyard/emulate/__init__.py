"""A cluster of engines that only pretend: real sockets, the endpoints of vLLM, and the time that real ones would take."""
