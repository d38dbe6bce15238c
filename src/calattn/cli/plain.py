"""Help as people read it: a flag and an argument show no type, and what may be repeated that of one."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup


class Plain:
    """Mixed into a command or a group: Typer would show `<bool>`, `<list[str]>` and `<int range>`."""

    def get_params(self, ctx: Any) -> list[Any]:
        found = super().get_params(ctx)  # type: ignore[misc]
        for each in found:
            if isinstance(each, TyperArgument):
                each.display_type_rich = lambda **_: None  # type: ignore[method-assign]
            elif each.is_flag:
                each.metavar = ""
            elif each.metavar is None:
                each.metavar = re.sub(r"list\[|\]| range", "", each.display_type(ctx) or "").lower()
        return found


class PlainCommand(Plain, TyperCommand):
    """A command with plain help. `--out` names a folder and `--write` a file: who mixes them up is told."""

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        flags = {flag for each in self.params for flag in each.opts}
        if "--write" in flags and "--out" not in flags and any(arg.split("=")[0] == "--out" for arg in args):
            raise ValueError("--out names a folder, and this command writes a file: use --write")
        return super().make_context(info_name, args, parent, **extra)


class PlainGroup(Plain, TyperGroup):
    """A group with plain help."""
