"""Convert timm's lambda_resnet26t or lambda_resnet50ts to LambdaResNet."""

from functools import partial

from mmseg_ext.commands._convert_file import main as convert

WHERE = """\
The files, whose SHA-256 begins with the digits at the end of the name:

  https://github.com/rwightman/pytorch-image-models/releases/download/v0.1-attn-weights/
      lambda_resnet26t_c_256-e5a5c857.pth
      lambda_resnet50ts_a1h_256-b87370f7.pth
"""

main = partial(convert, "timm_lambda_resnet", classifier=True, where=WHERE)
