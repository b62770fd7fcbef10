"""The fleet's metrics: what each guest last answered, kept with its age, and the page that Prometheus is given of it.

    last_answers   one guest: its last answers and whether it is up
    guest_answers  all guests: asks them when a page or a scrape needs it
    pacing         how many are asked at a time, and how long the event loop is held
    guest_series   one guest's sample lines, kept while its answers are unchanged
    proxy_series   the proxy's own series
    page           the page, family by family
    labels         which labels of the directory each line has, and under which names

A guest's text is a label's value at most. Every label's name, and the value of each that starts with `vm_`, is the proxy's.
"""
