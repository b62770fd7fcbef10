"""The fleet's metrics: what each guest last answered, kept with its age, and the page that Prometheus is given of it.

    last_known     one guest: its last answers and whether it gives any
    board          all guests; asks them behind whoever looks
    pacing         how many are asked at a time, and how long the event loop is held
    guest_lines    one guest's sample lines, kept while its answers are unchanged
    own_lines      the proxy's own series
    page           the page, family by family
    labels         which labels of the directory stand on each line, and under which names

A guest's text is a label's value at most. Every label's name, and the value of each that starts with `vm_`, is the proxy's.
"""
