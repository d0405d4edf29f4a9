"""Files like those of MovieLens 100K and of Criteo."""

from pathlib import Path

import numpy as np

USERS, ITEMS = 40, 30
KINDS = ("Action", "Comedy", "Drama", "War")


def folder(inside: Path, count: int = 600) -> Path:
    """`ml-100k`, with so many ratings, and what is known of users and films: men like action."""
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


def criteo(path: Path, count: int = 200) -> None:
    """So many lines: a label, 13 counts and 26 words, some of them missing."""
    draw = np.random.default_rng(0)
    lines = []
    for _ in range(count):
        counts = ["" if draw.random() < 0.2 else str(draw.integers(-1 if place == 1 else 0, 50)) for place in range(13)]
        words = ["" if draw.random() < 0.1 else f"{draw.integers(1 << 32):08x}" for _ in range(26)]
        lines.append("\t".join([str(draw.integers(2)), *counts, *words]) + "\n")
    path.write_text("".join(lines))
