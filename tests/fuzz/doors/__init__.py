"""All doors, in the order in which bytes reach them."""

from __future__ import annotations

from tests.fuzz.door import Door
from tests.fuzz.doors.addresses import ADDRESS
from tests.fuzz.doors.agent_pages import AGENT_PAGES
from tests.fuzz.doors.cache_control import CACHE_CONTROL
from tests.fuzz.doors.collector_parts import COLLECTOR_PARTS
from tests.fuzz.doors.http_reply import HTTP_REPLY
from tests.fuzz.doors.hybrid_vsock import HYBRID_VSOCK
from tests.fuzz.doors.log_query import LOG_QUERY
from tests.fuzz.doors.proxy_pages import PROXY_PAGES
from tests.fuzz.doors.relay import RELAY
from tests.fuzz.doors.replies import REPLY
from tests.fuzz.doors.settings import AGENT_CONFIG, GUEST_FILE, IDENTITY_FILE, PROXY_CONFIG, RACK_FILE
from tests.fuzz.doors.state_file import STATE_FILE
from tests.fuzz.doors.terminal import TERMINAL

DOORS: tuple[Door, ...] = (
    ADDRESS,
    AGENT_CONFIG,
    IDENTITY_FILE,
    RACK_FILE,
    PROXY_CONFIG,
    GUEST_FILE,
    STATE_FILE,
    CACHE_CONTROL,
    LOG_QUERY,
    COLLECTOR_PARTS,
    REPLY,
    HTTP_REPLY,
    HYBRID_VSOCK,
    RELAY,
    AGENT_PAGES,
    PROXY_PAGES,
    TERMINAL,
)
