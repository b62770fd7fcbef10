"""The frame of a server process: signals, streams, logs, reload, and what the service manager is told."""
