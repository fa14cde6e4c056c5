"""Convert Lambda-ResNet of d-li14/lambda.pytorch to LambdaResNet."""

from functools import partial

from mmseg_ext.commands._convert_file import main as convert

main = partial(convert, "lambda_resnet", classifier=True)
