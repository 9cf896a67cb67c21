"""From graded answers to policy: calibration of scores, the share-quality curve, thresholds, own weights. An offline tool."""
