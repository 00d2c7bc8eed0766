"""`mpips client`: print the flags with which a program in C or Fortran uses libmpips_client."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from mpips import _native
from mpips.errors import CapabilityError


@click.command(short_help="Print the compiler flags of the library for C and Fortran.")
@click.option("--cflags", is_flag=True, help="Print the flags of the header alone.")
@click.option("--libs", is_flag=True, help="Print the flags of the library alone.")
@click.option("--fortran", is_flag=True, help="Print the path of the Fortran module's source.")
def command(cflags: bool, libs: bool, fortran: bool) -> None:
    """Print the flags with which a program in C or Fortran uses libmpips_client.

    Programs push samples with it into a stream (mpips.StreamTable). Without options: header and library.

    \b
    cc solver.c -o solver $(mpips client)
    gfortran $(mpips client --fortran) solver.f90 -o solver $(mpips client --libs)
    """
    folder = client_folder()
    flags = []
    if fortran:
        flags.append(str(folder / "mpips_client.f90"))
    if cflags or not (libs or fortran):
        flags.append(f"-I{folder}")
    if libs or not (cflags or fortran):
        flags += [f"-L{folder}", f"-Wl,-rpath,{folder}", "-lmpips_client"]
    click.echo(shlex.join(flags))


def client_folder() -> Path:
    """Return the folder of header, library and Fortran module.

    Raises:
        CapabilityError: This installation has none.
    """
    folder = Path(_native.__file__).parent / "client"
    if not (folder / "libmpips_client.so").is_file():
        raise CapabilityError(
            f"{folder} has no libmpips_client.so: install mpips from a wheel, or build it again"
        )
    return folder
