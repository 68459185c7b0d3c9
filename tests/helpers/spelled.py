"""What must not be in a message, however it is spelled."""

import hashlib

from fedloom.transports import wire

FORMS = ("utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")


def spellings(word):
    """As text, and as a digest without a salt, of which anybody can make all there are."""
    digest = hashlib.sha256(word.encode())
    return [*(word.encode(form) for form in FORMS), digest.digest(), digest.hexdigest().encode()]


def carried(messages, words):
    """Which of these words are in messages, as these go over the wire."""
    frames = [wire.encode(message, "0" * 64) for message in messages]
    return [word for word in words if any(s in frame for s in spellings(word) for frame in frames)]
