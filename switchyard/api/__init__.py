"""The edge towards clients: bytes to requests, errors to bodies, and the control plane."""
