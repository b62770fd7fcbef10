"""The gRPC channel and server options of every part, each with its reason, so that no part has options of its own.

Rejected: service config for timeouts (misfires in grpcio 1.85; a timeout is passed with each call) and keepalive_timeout (has no effect
there; the ping timeout has).
"""

from __future__ import annotations

from guest_transport.addresses import Address, TcpAddress

Options = list[tuple[str, int | str]]

# A guest's reply over this is refused (contract: RESOURCE_EXHAUSTED); 1024 GPUs take about 200 KiB.
REPLY_LIMIT_BYTES = 1024 * 1024
# What clients of ours take: more than any message that a server of ours sends, also one that grew by being encoded anew.
CLIENT_REPLY_LIMIT_BYTES = 4 * REPLY_LIMIT_BYTES
# Every request of the contract is an id or empty; 64 KiB leaves room for a selector with a thousand ids.
REQUEST_LIMIT_BYTES = 64 * 1024
# A dead peer is noticed within two of these; more often would wake idle guests for nothing.
KEEPALIVE_SECONDS = 30
PING_TIMEOUT_SECONDS = 10
# A guest that comes back is seen at once, so reconnecting may not back off further than this.
RECONNECT_BACKOFF_SECONDS = 1
# One attempt to connect, up to the first HTTP/2 frame of the other side: the 2 s of a hybrid vsock handshake and some. gRPC's own 20 s
# would hold on to a guest that took the connection and died.
CONNECT_SECONDS = 2.5
# A client that connects and then says nothing (no HTTP/2 settings, no TLS handshake) is cut off after this; gRPC's own 120 s would let
# it sit on a descriptor twelve times as long.
HANDSHAKE_SECONDS = 10
# Calls in progress on one connection; further ones of an honest channel wait in the channel.
CONNECTION_CALLS = 100
# Calls with one answer that a client of ours has in progress; further ones wait in the client. gRPC counts a call until the server has let
# go of it, so a channel that fills CONNECTION_CALLS again at once is refused some (docs/decisions/bounds.md); twice this many never are.
CLIENT_CALLS = 48
# Calls that may be in progress in one server; further ones get RESOURCE_EXHAUSTED at once instead of a growing queue. gRPC counts them from
# their headers on and for all peers together, so it is far above what one peer's connections bring (64 of 100 calls each).
CONCURRENT_CALLS = 16 * 1024
# Of 16 KiB of headers and 64 KiB of request at the very most, mostly 1 KiB.
PENDING_CALLS = 16 * 1024


def channel_options(address: Address, *, reply_limit_bytes: int = REPLY_LIMIT_BYTES) -> Options:
    """Options of one channel to `address`; a reply over `reply_limit_bytes` is refused."""
    options: Options = [
        # Two channels to one target would otherwise share a connection, and with it one guest's fate.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_receive_message_length", reply_limit_bytes),
        ("grpc.keepalive_time_ms", KEEPALIVE_SECONDS * 1000),
        ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_SECONDS * 1000),
        ("grpc.initial_reconnect_backoff_ms", 100),
        # Its name misleads: this bounds one attempt to connect (measured with 1.85: the connection is closed after this time).
        ("grpc.min_reconnect_backoff_ms", int(CONNECT_SECONDS * 1000)),
        ("grpc.max_reconnect_backoff_ms", RECONNECT_BACKOFF_SECONDS * 1000),
        # A guest is dialled directly, whatever http_proxy says.
        ("grpc.enable_http_proxy", 0),
        # gRPC retries nothing: whoever calls knows whether the call may run twice.
        ("grpc.enable_retries", 0),
        # A guest cannot make us fetch configuration through DNS.
        ("grpc.service_config_disable_resolution", 1),
    ]
    if not isinstance(address, TcpAddress):
        # A socket path as :authority is refused by strict servers and tells the host's paths to the guest.
        options.append(("grpc.default_authority", "localhost"))
    return options


def server_options(connections_limit: int | None = None) -> Options:
    """Options of every server; each of its listeners takes `connections_limit` connections at a time, if given."""
    options: Options = [
        # A second server on the same port fails instead of taking half the calls.
        ("grpc.so_reuseport", 0),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_SECONDS * 1000),
        # Calls not taken up yet. gRPC's own 1000 would cancel what comes in one burst, which tells the caller nothing;
        # taken up, a call over CONCURRENT_CALLS is told so.
        ("grpc.server.max_pending_requests", PENDING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", 2 * PENDING_CALLS),
        ("grpc.max_receive_message_length", REQUEST_LIMIT_BYTES),
        ("grpc.max_send_message_length", CLIENT_REPLY_LIMIT_BYTES),
        ("grpc.keepalive_time_ms", KEEPALIVE_SECONDS * 1000),
        ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_SECONDS * 1000),
        # Clients of ours ping every 30 s, also without calls; the default (5 min) would punish them with GOAWAY.
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.max_concurrent_streams", CONNECTION_CALLS),
        # 16 KiB of request headers: metadata on the allow-list is far smaller. The second is the size from which every call is refused;
        # between the two gRPC would refuse more and more of them by chance.
        ("grpc.max_metadata_size", 16 * 1024),
        ("grpc.absolute_max_metadata_size", 16 * 1024),
    ]
    if connections_limit is not None:
        options.append(("grpc.max_allowed_incoming_connections", connections_limit))
    return options
