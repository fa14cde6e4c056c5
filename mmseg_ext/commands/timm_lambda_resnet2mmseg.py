"""Convert timm's lambda_resnet26t or lambda_resnet50ts to LambdaResNet."""

from functools import partial

from mmseg_ext.commands._convert_file import main as convert

main = partial(convert, "timm_lambda_resnet", classifier=True)
