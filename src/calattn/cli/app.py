"""The application: which commands there are, and the one way in."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from calattn import plugins
from calattn.cli import console, errors

WORK, JUDGE, LOOK = "Train and predict", "Judge and calibrate", "Look around"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """A command: its line in `calattn --help`, and where its function (or its own Typer application) is defined."""

    name: str
    target: str
    help: str
    panel: str

    @property
    def module(self) -> str:
        return self.target.partition(":")[0]

    def load(self) -> Any:
        """The command itself; its module is imported now and not before, so that help and completion are quick."""
        found = getattr(importlib.import_module(self.module), self.target.partition(":")[2])
        if isinstance(found, typer.Typer):
            return typer.main.get_command(found)
        single = typer.Typer(add_completion=False, rich_markup_mode="rich")
        single.command(self.name, epilog=getattr(found, "epilog", None), rich_help_panel=self.panel)(found)
        return typer.main.get_command(single)


# One line a command. The function's docstring is its `--help`; `function.epilog = examples("…")` adds examples to it.
COMMANDS = (
    Command(name="train", target="calattn.cli.train:train", help="Train a run from a recipe or a spec.", panel=WORK),
    Command(
        name="teach",
        target="calattn.cli.teach:teach",
        help="Give a trained network a head that calibrates it.",
        panel=WORK,
    ),
    Command(
        name="predict", target="calattn.cli.predict:predict", help="Write a trained run's predictions.", panel=WORK
    ),
    Command(name="data", target="calattn.cli.data:app", help="List, fetch and look at data sets.", panel=WORK),
    Command(
        name="evaluate",
        target="calattn.cli.evaluate:evaluate",
        help="Metrics of saved predictions, with intervals.",
        panel=JUDGE,
    ),
    Command(
        name="compare",
        target="calattn.cli.compare:compare",
        help="Is B better than A, or is it chance? (paired)",
        panel=JUDGE,
    ),
    Command(
        name="calibrate",
        target="calattn.cli.calibrate:calibrate",
        help="Fit a calibrator on held-out predictions and apply it.",
        panel=JUDGE,
    ),
    Command(
        name="report",
        target="calattn.cli.report:report",
        help="A leaderboard page of many runs, with a page for each.",
        panel=JUDGE,
    ),
    Command(
        name="list",
        target="calattn.cli.listing:listing",
        help="What there is: backbones, losses, heads, calibrators, metrics, …",
        panel=LOOK,
    ),
    Command(
        name="doctor",
        target="calattn.cli.doctor:doctor",
        help="What is installed, which devices, what is missing.",
        panel=LOOK,
    ),
)


class LazyGroup(TyperGroup):
    """Shows every entry by its one line, and imports only the one that is run."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return list(self.commands)

    def __init__(self, **options: Any) -> None:
        options["commands"] = {
            entry.name: TyperCommand(entry.name, help=entry.help, rich_help_panel=entry.panel)
            for entry in COMMANDS
            if importlib.util.find_spec(entry.module) is not None
        }
        super().__init__(**options)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The real command, where the help made do with a line."""
        name, command, rest = super().resolve_command(ctx, args)
        entry = next((entry for entry in COMMANDS if entry.name == name), None)
        if entry is None:
            return name, command, rest
        command = entry.load()
        if _takes_data_root(command):  # elsewhere an error would name a flag that nobody typed
            command.context_settings = command.context_settings | {"token_normalize_func": _flag}
        return name, command, rest


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"calattn {version('calattn')}")
        raise typer.Exit


def _takes_data_root(command: Any) -> bool:
    """Whether a command has the flag, or one of its own commands, which take over its settings."""
    own = any("--data-root" in parameter.opts for parameter in command.params)
    return own or any(_takes_data_root(each) for each in getattr(command, "commands", {}).values())


def _flag(name: str) -> str:
    """A flag by the name in the help: `--root`, as `data` and `doctor` once called it, is `--data-root`."""
    return {"root": "data-root"}.get(name, name)


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


@app.callback(
    epilog=errors.examples(
        "calattn doctor                              is everything there?",
        "calattn train digits                        half a minute, no network",
        "calattn evaluate predictions.npz            judge anybody's logits",
        "calattn compare runs/baseline runs/calattn  more than chance?",
    )
)
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
    plugin: Annotated[
        list[str] | None,
        typer.Option(
            "--plugin",
            metavar="MODULE|FILE.py",
            help="Import your own losses, heads, backbones, … first (anywhere on the line, may be repeated; also "
            "CALATTN_PLUGINS=a.py,b).",
        ),
    ] = None,
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Show the traceback of an error (anywhere on the line; also CALATTN_DEBUG=1)."),
    ] = False,
) -> None:
    """Train image classifiers whose confidence can be believed, and judge anybody's.

    Exit codes: 0 done, 1 failed, 2 wrong usage or input, 70 a bug of ours, 130 interrupted, 141 reader left, 143 terminated.
    Every command has [bold]--help[/bold] with examples; those that print results have [bold]--json[/bold] for scripts.
    """


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; errors are printed, not raised (unless debugging)."""
    # People add --debug at the end of the line that failed, so it counts wherever it stands.
    debug = "--debug" in arguments or os.environ.get("CALATTN_DEBUG", "") not in ("", "0")
    named, rest = _plugins([argument for argument in arguments if argument != "--debug"])
    command = typer.main.get_command(app)
    with errors.reported(as_json="--json" in rest, debug=debug) as outcome:
        if rest and not {"--help", "--version"} & set(rest):  # a plugin imports torch, for which help need not wait
            plugins.load(named)
        code = command.main(args=rest, prog_name="calattn", standalone_mode=False)
        if code == errors.INTERRUPTED:  # Typer has caught Ctrl-C itself, and says nothing
            raise KeyboardInterrupt
        outcome.code = code if isinstance(code, int) else 0
    return outcome.code


def _plugins(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The values of --plugin, wherever it stands, and the other arguments.

    >>> _plugins(["train", "--plugin", "a.py", "my.yaml", "--plugin=b"])
    (['a.py', 'b'], ['train', 'my.yaml'])
    """
    found, rest, left = [], [], list(arguments)
    while left:
        argument = left.pop(0)
        flag, equals, value = argument.partition("=")
        if flag == "--plugin":
            found.append(value if equals or not left else left.pop(0))
        else:
            rest.append(argument)
    return found, rest


def main() -> NoReturn:
    """The console command."""
    console.print_in_any_encoding()
    errors.notice_signals()
    sys.exit(run(sys.argv[1:]))
