"""The frame of both servers' HTTP sides: how pages are listened for, bounded, compressed and put into words.

    server               PageServer: listens, limits, stops
    connections, concurrency  one client's bounds; everybody's together
    answers              whole bodies, compressed when asked for
    bounded_stream       answers that go on, until their time is over
    shared_look          one read in progress, however many requests wait for it
    pages, formats       templates, assets and policy of pages; how numbers stand on them

It knows no page: each server brings its own app.
"""
