"""What the proto files cannot say about the contract, once, for agent, proxy and client alike.

    card_fields     one row for each value of a card: question, words, metric, plausible range
    card_judging    which values are possible, alone and beside each other
    card_values     a card's message as values that were judged by these ranges
    system_values   a guest's memory and swap, judged
    card_sums       sums over many cards that say of how many
    health          a card's verdict from its values, with reasons and what to do
    identifiers     what the id of a guest and the key of a label may be
    words           bytes, watts, ages and durations as people read them

It knows the generated contract only and does no I/O. card_fields and card_judging import nothing but each other and what a row is: the
collector, whose start is counted in milliseconds, imports them and no other module of this package.
"""
