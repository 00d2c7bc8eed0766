"""Recipe of Spack: copy the folder into `packages` of a repository, then `spack install py-mpips`."""

from spack.package import *
from spack_repo.builtin.build_systems.python import PythonPackage


class PyMpips(PythonPackage):
    """A parameter server for MPI clusters: one-sided push and pull, C++ shards, exact consistency."""

    homepage = "https://example.org/mpips"
    git = "https://example.org/mpips.git"

    license("Apache-2.0 AND MIT AND BSD-2-Clause AND CC-BY-4.0")

    # A release adds a line with its version and the sha256 of its source distribution.
    version("main", branch="main")

    depends_on("cxx", type="build")
    # std::from_chars for double
    conflicts("%gcc@:10")

    depends_on("python@3.10:", type=("build", "link", "run"))
    depends_on("cmake@3.18:", type="build")
    depends_on("ninja", type="build")
    depends_on("py-scikit-build-core@0.11:", type="build")
    depends_on("py-pybind11@2.13:", type="build")
    depends_on("py-hatch-fancy-pypi-readme@24.1:", type="build")

    depends_on("py-numpy@1.24:", type=("build", "run"))
    depends_on("py-mpi4py@4.1:", type=("build", "run"))
    depends_on("py-msgspec@0.22:", type=("build", "run"))
    depends_on("py-click@8.1:", type=("build", "run"))
    depends_on("py-rich@13:", type=("build", "run"))
    depends_on("py-threadpoolctl@3.1:", type=("build", "run"))
    depends_on("py-tomli@2:", type=("build", "run"), when="^python@:3.10")
    # Servers write checkpoints together.
    depends_on("py-h5py@3.11: +mpi", type=("build", "run"))
