"""Deciding: from a request's bytes to a pool. Pure but for the classifiers that ask a model."""
