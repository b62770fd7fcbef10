"""What `guest-service doctor` and `vmm-proxy doctor` share: verdicts, bounded checks, the report, and what both machines have.

It reads and never changes: nothing is bound for good, created, repaired or reset, so that it can be run at any hour beside a live server.
It knows no check of one side only; those stand in guest_service.doctor and vmm_proxy.doctor. Rejected: a doctor inside the servers (the one
who asks has a server that does not start), and a script beside the product (it would judge other rules than the product's own).
"""
