"""Time, memory, parameters and multiply-adds of the lambda layer and of LambdaResNet."""

import sys

from mmseg_ext import require_stack

if __name__ == "__main__":
    require_stack()
    from mmseg_ext.analysis.lambda_command import main

    sys.exit(main())
