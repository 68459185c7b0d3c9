"""What users type is a promise: it changes on purpose only."""

from tests.rails import public


def test_what_users_type_is_as_stored():
    now, before = list(public.lines()), public.STORED.read_text().splitlines()
    gone, new = sorted(set(before) - set(now)), sorted(set(now) - set(before))
    assert not gone and not new, f"gone: {gone}, new: {new}; if meant, see {public.__file__}"  # noqa: PT018
