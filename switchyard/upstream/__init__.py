"""Towards the engines: connections, headers, relaying of answers, and what an answer tells about itself."""
