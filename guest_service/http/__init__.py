"""The agent's HTTP side: `/metrics`, the dashboard, container logs, health.

    parts          what pages read from, as narrow interfaces; app.py of the agent fills them
    app            create_http_app(parts, pages): the routes
    server         HttpServer: listens, limits, stops
    connections    one client's bounds; gate: everybody's together

It only reads. What it shows is chosen by four switches, asked anew with each request (docs/security.md).
"""
