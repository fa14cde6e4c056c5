"""The docs' tables are those that the configs and docs/results give."""

import pytest

from benchmarks.docs_tables import outdated, zoo
from mmseg_ext.cost.model_cost import count_config
from tests.configs import CONFIGS


@pytest.mark.slow
def test_no_page_is_out_of_date():
    """Where this fails: python -m benchmarks.docs_tables, with --count for a new config."""
    assert sorted(zoo()) == sorted(path.stem for path in CONFIGS.glob("*.py"))
    assert [page.name for page in outdated()] == []


ONE_OF_EACH = ["ea_r18_shapes", "fcn_lambda_r50_cityscapes_80k"]
ONE_OF_EACH += ["fpn_rmt_tiny_ade20k_80k", "upernet_eamlp_14_ade20k_160k"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_counts_on_file_are_the_configs(name):
    ours, filed = count_config(CONFIGS / f"{name}.py"), zoo()[name]
    for field in ("parameters", "module_multiply_adds", "all_multiply_adds"):
        assert getattr(ours, field) == getattr(filed, field)
