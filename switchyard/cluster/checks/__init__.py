"""What `check` looks at, one module for each part of a cluster."""
