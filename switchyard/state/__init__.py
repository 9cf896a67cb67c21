"""What outlives a request and may be shared between gateways: use of limits, sessions, places of stored responses."""
