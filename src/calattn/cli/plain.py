"""Help as people read it: a flag and an argument show no type, and what may be repeated that of one."""

from __future__ import annotations

from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup


class Plain:
    """Mixed into a command or a group: Typer would show `<bool>` and `<list[str]>`."""

    def get_params(self, ctx: Any) -> list[Any]:
        found = super().get_params(ctx)  # type: ignore[misc]
        for each in found:
            if isinstance(each, TyperArgument):
                each.display_type_rich = lambda **_: None  # type: ignore[method-assign]
            elif each.is_flag:
                each.metavar = ""
            elif each.multiple and each.metavar is None:
                each.metavar = (each.display_type(ctx) or "").replace("list[", "").replace("]", "").lower()
        return found


class PlainCommand(Plain, TyperCommand):
    """A command with plain help. `--out` names a folder and `--write` a file; older lines with `--out FILE` are understood."""

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        flags = {flag for each in self.params for flag in each.opts}
        if "--write" in flags and "--out" not in flags:
            extra.setdefault("token_normalize_func", lambda name: "write" if name == "out" else name)
        return super().make_context(info_name, args, parent, **extra)


class PlainGroup(Plain, TyperGroup):
    """A group with plain help; its commands in the order they are given."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return list(self.commands)
