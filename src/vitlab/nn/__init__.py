"""The parts of a Vision Transformer, built from plain numbers.

Axes have one alphabet in every signature:

    B batch    C channels   H W pixels    P patch side
    N tokens   D width      F MLP width   A heads   K head width

`M` counts queries where they differ from the `N` keys, `V` is a value's width where it differs
from a key's, and `h w` count the rows and columns of patches.
"""
