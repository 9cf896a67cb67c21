"""A real model and a real engine for trying the gateway out on one small machine.

`model` fetches a small open model, `engine` serves it in a process of its own. Nothing here is part of the request
path, and the gateway never imports it: the command line's demo and the tests do.
"""
