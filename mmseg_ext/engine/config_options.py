"""The value of `--cfg-options`."""

from mmengine.config import DictAction


class ConfigOptions(DictAction):
    """mmengine's KEY=VALUE pairs; one without '=' is a usage error instead of a trace."""

    def __call__(self, parser, namespace, values, option_string=None):
        for value in values:
            if "=" not in value:
                parser.error(f"argument {option_string}: expected KEY=VALUE, got {value!r}")
        super().__call__(parser, namespace, values, option_string)
