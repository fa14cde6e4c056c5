"""The decode heads. Importing this package registers them in mmseg's `MODELS`.

Raises:
    StackError: if mmengine, mmcv or mmsegmentation is missing or too old.
"""

from mmseg_ext.environment import check_stack

check_stack()

from mmseg_ext.decode_heads.danet_ea_head import DANetEAHead
from mmseg_ext.decode_heads.ea_head import EAHead, JSegEAHead
from mmseg_ext.decode_heads.masa_head import MaSAHead
from mmseg_ext.decode_heads.unet_ea_head import UNetEAHead

__all__ = ["DANetEAHead", "EAHead", "JSegEAHead", "MaSAHead", "UNetEAHead"]
