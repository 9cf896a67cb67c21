"""Tests over real sockets: the gateway as it runs, a scriptable engine behind it, a raw client before it."""
