"""A folder like MovieLens 100K: what users thought of films, and what is known of both."""

from pathlib import Path

import numpy as np

USERS, ITEMS = 40, 30
KINDS = ("Action", "Comedy", "Drama", "War")


def folder(inside: Path, count: int = 600) -> Path:
    """`ml-100k`, with so many ratings: men like action."""
    made = inside / "ml-100k"
    made.mkdir()
    draw = np.random.default_rng(0)
    users = ["user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token"]
    for user in range(1, USERS + 1):
        users.append(f"{user}\t{20 + user % 30}\t{'FM'[user % 2]}\twriter\t{user:05}")
    items = ["item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq"]
    for item in range(1, ITEMS + 1):
        items.append(f"{item}\tFilm {item}\t{1990 + item % 9}\t{KINDS[item % 4]} {KINDS[item % 3]}")
    ratings = ["user_id:token\titem_id:token\trating:float\ttimestamp:float"]
    for user, item in zip(draw.integers(1, USERS + 1, count), draw.integers(1, ITEMS + 1, count), strict=True):
        rating = 5 if user % 2 and item % 4 == 0 else draw.integers(1, 6)
        ratings.append(f"{user}\t{item}\t{rating}\t{88000 + item}")
    for name, lines in (("user", users), ("item", items), ("inter", ratings)):
        (made / f"ml-100k.{name}").write_text("\n".join(lines) + "\n")
    return made
