"""Data homes: the folder in VITLAB_DATA, then the user's cache folder."""

from functools import partial

from vitlab.io import cache as home

homes = partial(home.homes, "data")
user_cache = partial(home.user_cache, "data")
writable_home = partial(home.writable_home, "data")
