"""Lambda-ResNet of d-li14/lambda.pytorch to LambdaResNet, or with --classifier to the whole net."""

from mmseg_ext.commands import start

if __name__ == "__main__":
    start("lambda_resnet2mmseg")
