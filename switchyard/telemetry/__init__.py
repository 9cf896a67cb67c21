"""What happened: the record of one request, and what is made of it: metrics, log lines, traces."""
