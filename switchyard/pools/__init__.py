"""From a pool to a replica: who is there, who is healthy, who is least busy, and who has to wait."""
