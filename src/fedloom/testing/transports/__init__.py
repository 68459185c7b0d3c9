"""What every transport must do, ours and others': checks to import into a test.

    import pytest
    from fedloom.testing.transports import LINK_CHECKS, TRANSPORT_CHECKS, connected

    class Mine:                                       # what connects a federation's parties
        def __init__(self, topology): ...
        def transport(self, me, run, dials, expected, **rules): ...
        def cut(self, one, other): ...

    @pytest.mark.parametrize("check", TRANSPORT_CHECKS.values(), ids=TRANSPORT_CHECKS)
    def test_transport(check):
        check(connected(Mine))

    @pytest.mark.parametrize("check", LINK_CHECKS.values(), ids=LINK_CHECKS)
    def test_links(check):
        check(Mine)

`TRANSPORT_CHECKS` are of what an engine asks, `LINK_CHECKS` of what parties ask that are processes
of their own. A check returns nothing, or raises an AssertionError, or the error of a transport that
should have been quiet.
"""

from .checks import TRANSPORT_CHECKS
from .federation import Federation, Wires, connected
from .link_checks import LINK_CHECKS

__all__ = ["LINK_CHECKS", "TRANSPORT_CHECKS", "Federation", "Wires", "connected"]
