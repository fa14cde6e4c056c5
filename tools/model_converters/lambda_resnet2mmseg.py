"""Lambda-ResNet of d-li14/lambda.pytorch to LambdaResNet, or with --classifier to the whole net."""

import sys

from mmseg_ext import require_stack

if __name__ == "__main__":
    require_stack()
    from mmseg_ext.commands._convert_file import main

    sys.exit(main("lambda_resnet", classifier=True))
