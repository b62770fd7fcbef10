"""The proxy's HTTP side: the fleet's `/metrics`, service discovery, the dashboard, health.

    settings        [http] and [metrics], checked
    app             create_http_app(parts): the routes
    metrics_page    /metrics, of all guests or of one
    discovery       /sd: every guest as a target of its own
    dashboard_page  / and the fleet's live events

It only reads, and shows everything to whoever reaches the port: so that is loopback or a Unix socket unless the operator says otherwise.
"""
