"""timm's lambda_resnet26t or lambda_resnet50ts to LambdaResNet, or with --classifier all of it."""

import sys

from mmseg_ext import require_stack

if __name__ == "__main__":
    require_stack()
    from mmseg_ext.commands._convert_file import main

    sys.exit(main("timm_lambda_resnet", classifier=True))
