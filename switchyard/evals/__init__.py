"""Evals: the same cases through several arms of a gateway, and what the paired outcomes show.

The gateway is seen over HTTP only. `stats` and `verdict` are pure; suites bring cases and graders; `runner` asks,
`folder` keeps, `report` and `page` show.
"""
