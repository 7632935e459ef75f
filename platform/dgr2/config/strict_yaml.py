"""YAML as configuration wants it: the scalars of YAML 1.2's core schema, and no key twice.

PyYAML's own rules are those of YAML 1.1, where ``yes`` is a truth value, ``010`` is eight, ``1:30`` is ninety
and ``3e-4`` is text.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from dgr2.errors import ConfigError


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        names = [k.value for k, _ in node.value if isinstance(k, yaml.ScalarNode)]
        for name in names:
            if names.count(name) > 1:
                raise yaml.YAMLError(f"key '{name}' stands twice")
        return super().construct_mapping(node, deep)


for _tag, _pattern, _first in (
    ("bool", r"true|false", "tf"),
    ("null", r"null|~|", ["n", "~", ""]),
    ("int", r"[-+]?(0|[1-9][0-9]*)", "-+0123456789"),
    ("float", r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?", "-+.0123456789"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first))


def parse(text: str, origin: str) -> Any:
    """The value that a YAML text holds.

    Args:
        text: the document.
        origin: what to call it in an error.

    Raises:
        ConfigError: the text is not YAML.
    """
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{origin} is not readable: {' '.join(str(error).split())}") from error
