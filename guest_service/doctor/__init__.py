"""`guest-service doctor`: what can be wrong in a guest, one finding a line, each with what to do.

Each check reads as the agent reads, with the agent's own parts where it has them, and judges apart from the reading. Nothing is changed:
no socket, no state, no setting of a card. What both doctors have in common is in guest_transport.doctor.
"""
