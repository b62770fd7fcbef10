"""What both servers write to their logs, seen from outside."""
