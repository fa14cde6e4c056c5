"""The published outputs of every backbone."""

import pytest

from mmseg_ext.doctor.fixtures import BACKBONES
from tests.parity import assert_case_parity


@pytest.mark.parametrize("name", BACKBONES)
def test_parity_with_published(name):
    assert_case_parity(name)
