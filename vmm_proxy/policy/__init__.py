"""Who may call what, and about which guests.

Only `PolicyInterceptor` decides; everything else here gives it data or carries its decision. It fails closed: a caller without valid
credentials, a method that is not listed and a file that cannot be trusted are all refused.
"""
