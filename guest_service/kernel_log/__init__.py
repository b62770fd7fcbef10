"""XIDs from the kernel log: the driver's own reports about its cards, which a collector that lives for one sample cannot wait for.

records   one record of the log, and what it says about a card
xids      how often each number was reported, by PCI address, bounded
reader    reads /dev/kmsg, or a FIFO with the same records, on the event loop
"""
