"""Help in sections, and a group whose first word may be something else than a command. Knows no option."""

from __future__ import annotations

from typing import Any

from octavo.cli.values import QuickCommand, QuickGroup

__all__ = ["GroupWithDefault", "PanelCommand"]


class PanelCommand(QuickCommand):
    """A command whose help has its options under the headings that they name (`rich_help_panel`).

    The epilog stands as it is written: examples keep their lines.
    """

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        formatter.write_usage(ctx.command_path.strip(), " ".join(self.collect_usage_pieces(ctx)))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                plain = "Arguments" if parameter.param_type_name == "argument" else "Options"
                sections.setdefault(getattr(parameter, "rich_help_panel", None) or plain, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if self.epilog:
            formatter.write("\n" + self.epilog.strip("\n") + "\n")


class GroupWithDefault(QuickGroup):
    """A group that takes words which begin with none of its commands as those of its command `run`.

    So `octavo bench URL` is `octavo bench run URL`, and the group's help is that of `run`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args:
            args = ["--help"]
        if args[0] not in self.commands:
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return (None if name == "run" else name), command, rest  # messages name what was typed
