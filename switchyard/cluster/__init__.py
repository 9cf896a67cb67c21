"""The cluster behind the gateway: described, planned, predicted. Pure functions; what opens sockets lives beside it."""
