"""Switchyard: one endpoint in front of your own models; a policy decides which pool and which replica answers.

Importing this package must stay instant: nothing is imported here.
"""

__version__ = "0.1.0"
