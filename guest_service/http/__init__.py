"""The agent's HTTP side: `/metrics`, the dashboard, container logs, health.

    parts          what pages read from, as narrow interfaces; app.py of the agent fills them
    app            create_http_app(parts): the routes
    server         HttpServer: listens, limits, stops

It is imported when gRPC answers already: web servers and templates take longer to load than all else. It only reads. What it shows is
chosen by four switches, asked anew with each request (docs/security.md).
"""
