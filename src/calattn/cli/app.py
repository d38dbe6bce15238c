"""The application: which commands there are, and the one way in."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, NoReturn

import typer
from typer.core import TyperCommand

from calattn import plugins
from calattn.cli import console, errors
from calattn.cli.plain import PlainCommand, PlainGroup

WORK, JUDGE, LOOK = "Train and predict", "Evaluate and calibrate", "Look around"


class Command(NamedTuple):
    """A command: its line in `calattn --help`, and which function (or Typer application of its own) of which module it is."""

    name: str
    panel: str
    help: str
    module: str = ""
    function: str = ""

    def load(self) -> Any:
        """The command itself; its module is imported now and not before, so that help and completion are quick."""
        module = importlib.import_module(f"calattn.cli.{self.module or self.name}")
        found = getattr(module, self.function or self.name)
        if isinstance(found, typer.Typer):
            return typer.main.get_command(found)
        single = typer.Typer(add_completion=False, rich_markup_mode="rich")
        epilog = getattr(found, "epilog", None)
        single.command(self.name, cls=PlainCommand, epilog=epilog, rich_help_panel=self.panel)(found)
        return typer.main.get_command(single)


# One line per command. The function's docstring is its `--help`; `function.epilog = examples("…")` adds examples to it.
COMMANDS = (
    Command("train", WORK, "Train a run from a recipe or a spec."),
    Command("sweep", WORK, "Train all runs of a grid, here or on a Ray cluster."),
    Command("teach", WORK, "Give a trained network a head that calibrates it."),
    Command("predict", WORK, "Predict new images, or a trained run's own."),
    Command("export", WORK, "Write a trained network as an ONNX file, or a torch.export one."),
    Command("data", WORK, "List, fetch and look at data sets.", function="app"),
    Command("evaluate", JUDGE, "Metrics of saved predictions, with intervals."),
    Command("compare", JUDGE, "Is B better than A, or is it chance? (paired)"),
    Command("calibrate", JUDGE, "Fit a calibrator on held-out predictions and apply it."),
    Command("report", JUDGE, "A leaderboard page of many runs, with a page for each."),
    Command("list", LOOK, "What there is: backbones, losses, heads, calibrators, metrics, …", "listing", "listing"),
    Command("doctor", LOOK, "What is installed, which devices, what is missing."),
)


class LazyGroup(PlainGroup):
    """Shows every entry by its one line, and imports only the one that is run."""

    def __init__(self, **options: Any) -> None:
        options["commands"] = {
            entry.name: TyperCommand(entry.name, help=entry.help, rich_help_panel=entry.panel) for entry in COMMANDS
        }
        super().__init__(**options)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The real command, where the help made do with a line."""
        name, command, rest = super().resolve_command(ctx, args)
        entry = next((entry for entry in COMMANDS if entry.name == name), None)
        return name, command if entry is None else entry.load(), rest


def _print_version(wanted: bool) -> None:
    if wanted:
        from calattn.distribution import version

        typer.echo(f"calattn {version()}")
        raise typer.Exit


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(
    epilog=errors.examples(
        "calattn doctor                              is everything there?",
        "calattn train digits                        half a minute, no network",
        "calattn evaluate predictions.npz            evaluate anybody's logits",
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
    """Train image classifiers with calibrated confidence, and evaluate the predictions of any classifier.

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
        if rest and not {"-h", "--help", "--version"} & set(
            rest
        ):  # a plugin imports torch, for which help need not wait
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
