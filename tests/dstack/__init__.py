"""dstack's protocol, with peers that are written from its facts and share no code with the product."""
