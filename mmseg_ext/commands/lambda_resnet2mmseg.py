"""Convert Lambda-ResNet of d-li14/lambda.pytorch to LambdaResNet."""

from functools import partial

from mmseg_ext.commands._convert_file import main as convert

WHERE = """\
The files are linked in the README of https://github.com/d-li14/lambda.pytorch; it has no licence.
"""

main = partial(convert, "lambda_resnet", classifier=True, where=WHERE)
