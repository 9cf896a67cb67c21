"""The policy file: its models, its strict loader, its schema. Nothing here acts on a policy."""
