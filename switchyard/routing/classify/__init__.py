"""Classifiers: each gives the probability that the small pool is good enough, or abstains. One file each."""
