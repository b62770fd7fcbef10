"""The command `guestctl`: shows guests and their GPUs on a terminal, or as JSON to a script.

A command line is first read into a Question (cli), which needs neither gRPC nor rich, then asked (answering), then shown (tables,
json_view). Text of a guest is escaped before it reaches a terminal.
"""
