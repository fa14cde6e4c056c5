"""The base tester on each registered head without a file of its own."""

from tests.decode_heads.base import HeadTester
from tests.models import untested

for _name in untested("decode_heads", HeadTester):
    _tester = type(f"Test{_name}", (HeadTester,), {"config": {"type": _name, "channels": 16}})
    globals()[_tester.__name__] = _tester
    del _tester
