"""Who may call what, and about which guests.

`Gate` is the one place that decides; everything else here feeds it or carries its verdict. It fails closed: a caller that
nothing speaks for, a method that nobody listed and a file that cannot be trusted are all refused.
"""
