"""Progress bars for whatever takes longer than a few seconds."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")


def progress(iterable: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Iterate with a text progress bar on stderr, which disappears when the loop ends.

    Set the environment variable TQDM_DISABLE=1 to switch it off (the book's build does, so that pages hold no bars).
    """
    return iter(tqdm(iterable, desc=description, total=total, leave=False, dynamic_ncols=True))
