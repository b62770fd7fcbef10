"""What Guestscope tells Prometheus: the one table of names, and the text that guest agent and proxy serve from it.

    table        every family: name, kind, labels, help
    exposition   sample lines, pages in two formats, content negotiation
    gpu, guest   messages of the contract -> sample lines
    process      the serving process's own series

It knows the contract and nothing else, so that a guest's page and the fleet's page cannot drift apart.
"""
