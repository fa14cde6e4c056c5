"""timm's lambda_resnet26t or lambda_resnet50ts to LambdaResNet, or with --classifier all of it."""

from mmseg_ext.commands import start

if __name__ == "__main__":
    start("timm_lambda_resnet2mmseg")
