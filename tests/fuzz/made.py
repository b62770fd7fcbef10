"""The entries of the corpus that repeat one piece, as expressions: a reviewer can read `b"[" * 20_000`, but no file of 20,000 brackets.

All other entries are files in corpus/, where a crasher is saved. A crasher that is long because it repeats a piece moves to here.
"""

from __future__ import annotations

# A card without a value: field 1, of length 0.
_EMPTY_CARD = b"\x0a\x00"
# A network interface with 1000 addresses, each of them empty.
_INTERFACE = b"\x1a\xd0\x0f" + b"\x12\x00" * 1000

# By door, then by entry.
MADE: dict[str, dict[str, bytes]] = {
    "agent-config": {
        "deep": b"a = " + b"[" * 20_000,
        "digits": b"[gpu]\nsample_ttl_seconds = " + b"9" * 5000,
        "hexadecimal-digits": b"gpu.sample_ttl_seconds = 0x" + b"f" * 5000 + b"\n",
        "key-long": b"[log]\n" + b"x" * 9000 + b" = 1\n",
        "value-long": b'[log]\nlevel = "' + b"x" * 9000 + b'"\n',
    },
    "agent-pages": {"huge": b"x" * 70_000},
    "cache-control": {"huge": b"max-age=" + b"9" * 5000},
    "collector-parts": {"deep": b'{"card":' + b"[" * 5000 + b"\n"},
    "guest-file": {
        "hexadecimal-digits": b"id = 0x" + b"f" * 5000 + b"\n",
        "label-key-long": b'id = "a"\naddress = "unix:/a"\n[labels]\n' + b"x" * 3000 + b' = "1"\n',
        "many-gpus": b'id = "a"\naddress = "unix:/a"\ngpus = [' + b'"0000:3b:00.0",' * 65 + b"]\n",
        "too-large": b"#" * 70_000,
    },
    "identity-file": {
        "deep": b"[" * 5000,
        "digits": b'{"app_id": ' + b"9" * 5000 + b"}",
        "key-long": b'{"' + b"x" * 3000 + b'": 1}',
    },
    "proxy-config": {
        "deep": b"guest = " + b"[" * 20_000,
        "hexadecimal-digits": b"grpc.allow_plaintext = 0x" + b"f" * 5000 + b"\n",
        "hexadecimal-digits-for-a-text": b"[libvirt]\nuri = 0x" + b"f" * 5000 + b"\n",
        "hexadecimal-digits-for-a-user": b'[[access.grant]]\nrole = "viewer"\nunix_user = 0x' + b"f" * 5000 + b"\n",
        "key-long": b"x" * 9000 + b" = 1\n",
    },
    "proxy-pages": {"huge": b"x" * 70_000},
    "rack-file": {
        "deep": b"card = " + b"[" * 20_000,
        "digits": b"init_seconds = " + b"9" * 5000,
        "hexadecimal-digits": b"init_seconds = 0x" + b"f" * 5000 + b"\n",
        "hexadecimal-digits-in-a-card": b"[[card]]\nindex = 0x" + b"f" * 5000 + b"\n",
        "hexadecimal-digits-in-a-list": b"[[card]]\nuuid = [0x" + b"f" * 5000 + b"]\n",
        "key-long": b"x" * 9000 + b" = 1\n",
    },
    # The first byte chooses the method: 1 SysInfo, 2 GpuInfo, 3 NetworkInfo.
    "reply": {
        "cards-at-the-limit": b"\x02" + _EMPTY_CARD * 1024,
        "cards-over-the-limit": b"\x02" + _EMPTY_CARD * 1025,
        "empty-cards": b"\x02" + _EMPTY_CARD * 20_000,
        "length-past-the-end": b"\x02\x0a\xff\xff\xff\xff\x0f" + b"x" * 3000,
        "lists-in-lists": b"\x03" + _INTERFACE * 40,
        "open-group": b"\x02" + b"\x0b" * 9000,
        "string-at-the-limit": b"\x02\x12\x80\x80\x04" + b"x" * 65_536,
        "string-too-long": b"\x02\x12\x81\x80\x04" + b"x" * 65_537,
        "unknown-fields": b"\x01" + b"\xc2\x3e\x03abc" * 400,
    },
    "state-file": {
        "deep": b'{"guests":' + b"[" * 5000,
        "key-long": b'{\n "guests": [\n  {\n   "id": "a",\n   "address": "unix:/a",\n   "' + b"x" * 3000 + b'": 1\n  }\n ]\n}',
    },
    "terminal": {"huge": b"x" * 70_000},
}
