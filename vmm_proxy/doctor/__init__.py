"""`vmm-proxy doctor`: what can be wrong on a host, one finding a line, each with what to do.

Each check reads as the proxy reads, with the proxy's own parts where it has them, and judges apart from the reading. Nothing is changed: no
socket stays, no entry is written, no guest is asked for more than who it is. What both sides have stands in guest_transport.doctor.
"""
