"""`mpips ckpt publish`: write the rows of a checkpoint into Redis, and later what has changed."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from mpips.checkpoint.find import choose_checkpoint
from mpips.checkpoint.publish import publish
from mpips.checkpoint.reader import open_checkpoint
from mpips.monitor.progress import plural
from mpips.terminal.screen import say


@click.command("publish")
@click.argument("path", type=click.Path(path_type=Path), default=Path())
@click.option(
    "--to",
    "url",
    required=True,
    metavar="URL",
    help="Address of the server: redis://[:PASSWORD@]HOST:PORT/DB, rediss://... or unix:///SOCKET?db=0.",
)
@click.option(
    "--prefix",
    default="mpips",
    show_default=True,
    help="Beginning of all names in Redis.",
)
@click.option("--table", "tables", multiple=True, help="Publish only this table; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON instead of text.")
def command(path: Path, url: str, prefix: str, tables: tuple[str, ...], as_json: bool) -> None:
    """Write the rows of embedding tables into Redis, and later what has changed.

    The hash PREFIX:TABLE has a field for each key, in decimal digits: the row's values as little-endian
    float32. If Redis has an earlier checkpoint of the same chain (checkpoint.incremental), only the links
    behind it are applied. Otherwise all rows are written, and replace the former ones at once. The command
    may be repeated at any time. All checksums are compared first. Needs the package redis.
    """
    with open_checkpoint(choose_checkpoint(path)) as checkpoint:
        checkpoint.verify()
        done = publish(checkpoint, url, prefix, tables)
    if as_json:
        click.echo(msgspec.json.encode(done).decode())
        return
    what = "all rows" if done.whole else plural(done.links, "link")
    say(
        f"{done.checkpoint}  {what}: {plural(done.rows, 'row')} set, "
        f"{plural(done.removed, 'key')} deleted",
        err=False,
    )
