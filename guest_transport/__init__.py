"""How bytes get from one part of Guestscope to another, and nothing about what they mean.

Addresses, socket files, channel and server options, the byte relay for vsock, and the frame that both server processes share.
It knows neither the contract nor any other room, so that guest and proxy can both stand on it.
"""

import logging

# A program that has not set up logging (guestctl, a user of guest_client) gets these lines as errors of the call; Python's fallback would
# print them on stderr as well.
logging.getLogger(__name__).addHandler(logging.NullHandler())
